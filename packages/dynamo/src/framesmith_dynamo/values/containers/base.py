"""Common base of containers: methods by name, special methods through the protocol, no attributes of their own.

A method `name` of a Python type is the Python method `m_name(self, tr, *args, **kwargs)` of its value class, whose
signature decides which calls are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from framesmith_dynamo.breaks import NOT_CONSTANT
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.errors import not_implemented_by, refuse, refuse_positional, takes
from framesmith_dynamo.values.operations import BINARY_SLOTS, COMPARE_SLOTS, UNARY

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class ContainerValue(Value):
    """A container of a builtin type: its operators are Python's.

    `changed`: the trace has changed its contents. `real`: the object itself, of immutable ones found at a source.
    """

    exact_operators = True
    __slots__ = ("changed", "real", "version")

    def __init__(self, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.changed = False
        self.version = 0
        self.real: Any = None

    def real_object(self) -> Any:
        return self.real

    def has_changed(self) -> bool:
        return self.changed

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(self.python_type())
        if not hasattr(self.python_type(), name):
            refuse_positional(tr, getattr, self, tr.constant(name))
        if hasattr(self, f"m_{name}") or name in DUNDERS:
            return BuiltinMethodValue(self, name)
        if name != "__doc__":
            self.unsupported(f"attribute {name!r}")
        return tr.constant(self.python_type().__doc__)

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        refuse_positional(tr, setattr, self, tr.constant(name), value)

    def delattr_(self, tr: Tracer, name: str) -> None:
        refuse_positional(tr, delattr, self, tr.constant(name))

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        method = getattr(self, f"m_{name}", None)
        if method is None:
            dunder = DUNDERS.get(name)
            if dunder is None or not hasattr(self.python_type(), name):
                return tr.call(self.getattr_(tr, name), args, kwargs)
            if kwargs or len(args) != DUNDER_ARITY.get(name, 1):
                self.refuse_call(tr, name, args, kwargs)
            return dunder(tr, self, *args)
        if not takes(getattr(type(self), f"m_{name}"), self, tr, *args, **kwargs):
            self.refuse_call(tr, name, args, kwargs)
        result = method(tr, *args, **kwargs)
        return result if isinstance(result, Value) else tr.constant(result)

    def refuse_call(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> NoReturn:
        """Raise the method's error for these arguments."""
        refuse(tr, getattr(self.python_type(), name), (self, *args), kwargs)

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        refuse(tr, lambda obj, *args, **kwargs: obj(*args, **kwargs), (self, *args), kwargs)

    def hash_key(self, tr: Tracer) -> object:
        refuse_positional(tr, hash, self)

    def bool_(self, tr: Tracer) -> bool:
        return bool(self.len_(tr).as_constant())

    def unary_op(self, tr: Tracer, op: str) -> Value:
        refuse_positional(tr, UNARY[op], self)

    def as_plain(self) -> Any:
        self.unsupported("as a constant", kind=NOT_CONSTANT)

    def next_(self, tr: Tracer) -> Value:
        refuse_positional(tr, next, self)


class MutableContainer(ContainerValue):
    """A container whose contents may change, through the journal; it is tracked from the start."""

    __slots__ = ()

    def changes(self, tr: Tracer) -> None:
        """Record a change of the contents; every mutation calls it first."""
        tr.journal.mutate(self)
        self.changed = True

    def contents_type(self) -> type:
        """The builtin type whose methods write the contents (see `framesmith_sideeffects.contents`)."""
        raise NotImplementedError

    def reconstruct_contents(self, codegen: Codegen) -> None:
        """Push a new plain container with the current contents."""
        raise NotImplementedError

    def reconstruct_empty(self, codegen: Codegen) -> None:
        """Push a new object of the same type without contents."""
        raise NotImplementedError

    def item_changes(self) -> None:
        """No list of single changes: all contents are written."""
        return

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
        else:
            self.reconstruct_contents(codegen)


Dunder = Callable[..., Value]


def _nothing(tr: Tracer, result: None) -> Value:
    return tr.constant(None)


def _or_builtin(tr: Tracer, self: Value, name: str, other: Value, result: Value | None) -> Value:
    """Return the result, or that of the builtin type's own method: NotImplemented, or its error."""
    return not_implemented_by(tr, getattr(self.python_type(), name), self, other) if result is None else result


def _binary(name: str, op: str) -> Dunder:
    return lambda tr, self, other: _or_builtin(tr, self, name, other, self.binary_op(tr, op, other))


def _inplace(name: str, op: str) -> Dunder:
    return lambda tr, self, other: _or_builtin(tr, self, name, other, self.inplace_op(tr, op, other))


def _reflected(name: str, op: str) -> Dunder:
    return lambda tr, self, other: _or_builtin(tr, self, name, other, self.reflected_op(tr, op, other))


def _comparison(name: str, op: str) -> Dunder:
    return lambda tr, self, other: _or_builtin(tr, self, name, other, self.compare(tr, op, other))


def _rows(make: Callable[[str, str], Dunder], prefix: str, slots: Mapping[str, str]) -> dict[str, Dunder]:
    names = {f"__{prefix}{slot}__": op for op, slot in slots.items()}
    return {name: make(name, op) for name, op in names.items()}


#: Special methods called by name.
DUNDERS: dict[str, Dunder] = {
    "__len__": lambda tr, self: self.len_(tr),
    "__iter__": lambda tr, self: self.iter_(tr),
    "__next__": lambda tr, self: self.next_(tr),
    "__contains__": lambda tr, self, item: self.contains(tr, item),
    "__getitem__": lambda tr, self, key: self.getitem(tr, key),
    "__setitem__": lambda tr, self, key, value: _nothing(tr, self.setitem(tr, key, value)),
    "__delitem__": lambda tr, self, key: _nothing(tr, self.delitem(tr, key)),
    **_rows(_binary, "", BINARY_SLOTS),
    **_rows(_reflected, "r", BINARY_SLOTS),
    **_rows(_inplace, "i", BINARY_SLOTS),
    **_rows(_comparison, "", COMPARE_SLOTS),
}
DUNDER_ARITY = {"__len__": 0, "__iter__": 0, "__next__": 0, "__setitem__": 2}

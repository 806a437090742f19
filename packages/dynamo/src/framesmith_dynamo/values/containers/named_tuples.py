"""Named tuples and torch's structured results (`torch.return_types.max`): tuples with names for their items."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.constants.constant import plain
from framesmith_dynamo.values.containers.dict import new_dict
from framesmith_dynamo.values.containers.tuple import TupleValue, lazy_items
from framesmith_dynamo.values.errors import answered
from framesmith_dynamo.values.lookup import entry_value, instance_dict, type_lookup
from framesmith_dynamo.values.operations import BINARY_SLOTS, COMPARE_SLOTS, UNARY_SLOTS
from framesmith_dynamo.values.wrap_registry import build, builds_family, wraps_family
from framesmith_guards import InstanceDictSource

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


MORE_THAN_ITEMS = register_break(
    "named-tuple-attributes",
    what="a named tuple has attributes that are not its fields",
    why="the tracer knows named tuples by their items",
    hint="make them fields, or give the class `__slots__ = ()`",
)


#: What makes a tuple one: where a class has another, its objects are no values of this kind.
TUPLES_OWN = frozenset(vars(tuple)) - {"__new__", "__repr__", "__getnewargs__", "__doc__", "__class_getitem__"}
#: What of it a class may define anew, as a Python function, or as a field (`index`, `count`): it is asked first.
ASKED_FIRST = TUPLES_OWN - {"__getattribute__", "__iter__", "__len__"}


def is_namedtuple_class(cls: type) -> bool:
    """Whether a class was made by `collections.namedtuple` or `typing.NamedTuple`, or adds only methods to one."""
    return has_named_items(cls) and _is_generated(type_lookup(cls, "__new__"))


def has_named_items(cls: type) -> bool:
    """Whether a class is a named tuple's, or extends one without a change to what it is as a tuple."""
    fields = type_lookup(cls, "_fields") if issubclass(cls, tuple) else None
    return (
        fields is not None
        and isinstance(fields.raw, tuple)
        and any(_is_generated(Found(base, base.__dict__.get("__new__"))) for base in cls.__mro__)
        and all(_is_followed(cls, name, fields.raw) for name in TUPLES_OWN)
        and type_lookup(cls, "__getattr__") is None
    )


def _is_followed(cls: type, name: str, fields: tuple[str, ...]) -> bool:
    """Whether what makes a tuple one is the tuple's own in a class, or another that is asked in its place."""
    found = type_lookup(cls, name)
    if found is None or found.owner is tuple:
        return found is not None
    own = isinstance(found.raw, FunctionType) or name in fields or (name == "__hash__" and found.raw is None)
    return name in ASKED_FIRST and own


def _is_generated(found: Found | None) -> bool:
    """Whether `__new__` is the one that namedtuple makes."""
    function = getattr(found.raw, "__func__", found.raw) if found is not None else None
    return isinstance(function, FunctionType) and function.__code__.co_filename.startswith("<string>")


def is_structseq_class(cls: type) -> bool:
    """Whether a class is a C structure sequence."""
    return issubclass(cls, tuple) and isinstance(cls.__dict__.get("n_sequence_fields"), int)


class NamedTupleValue(TupleValue):
    """An instance of a named tuple or structure sequence class."""

    __slots__ = ("cls", "names")

    def __init__(self, items: Iterable[Value], cls: type, *, source: Source | None = None) -> None:
        super().__init__(items, source=source)
        self.cls = cls
        self.names: tuple[str, ...] = getattr(cls, "_fields", None) or cls.__match_args__  # type: ignore[attr-defined]

    def python_type(self) -> type:
        return self.cls

    def is_constant(self) -> bool:
        return False

    def can_be_constant(self) -> bool:
        return False

    def as_constant(self) -> Any:
        return Value.as_constant(self)

    def as_plain(self) -> Any:
        return _make(self.cls, [plain(self.at(index)) for index in range(len(self.items))])

    def as_proxy(self) -> Any:
        return _make(self.cls, super().as_proxy())

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name in self.names:
            return self.at(self.names.index(name))
        found = type_lookup(self.cls, name)
        if found is not None and isinstance(found.raw, FunctionType) and name not in ("_replace", "_asdict"):
            return tr.call(tr.constant(MethodType), [entry_value(tr, self.cls, found, name, self.source), self], {})
        if found is not None and isinstance(found.raw, property) and isinstance(found.raw.fget, FunctionType):
            return tr.call(entry_value(tr, self.cls, found, name, self.source, "fget"), [self], {})
        if found is not None and isinstance(found.raw, classmethod | staticmethod):
            function = entry_value(tr, self.cls, found, name, self.source, "__func__")
            if isinstance(found.raw, staticmethod):
                return function
            return tr.call(tr.constant(MethodType), [function, tr.constant(self.cls)], {})
        if name == "_fields":
            return tr.constant(self.names)
        if found is not None and not hasattr(tuple, name) and type_lookup(type(found.raw), "__get__") is None:
            return entry_value(tr, self.cls, found, name, self.source)
        return super().getattr_(tr, name)

    def delattr_(self, tr: Tracer, name: str) -> None:
        if type_lookup(self.cls, "__delattr__") != Found(object, object.__delattr__):
            self.refuse(f"deleting attribute {name!r}")
        try:
            object.__delattr__(_make(self.cls, [None] * len(self.items)), name)
        except AttributeError as error:
            tr.raise_(AttributeError, *error.args)

    # What a class defines in the place of the tuple's own

    def _own(self, tr: Tracer, name: str) -> Value | None:
        """The function that the class itself has for a special method; None where it has the tuple's."""
        found = type_lookup(self.cls, name)
        if found is None or not isinstance(found.raw, FunctionType):
            return None
        return entry_value(tr, self.cls, found, name, self.source)

    def _answer(self, tr: Tracer, own: Value, *args: Value) -> Value | None:
        """What it gives; None stands for NotImplemented."""
        answer = tr.call(own, [self, *args], {})
        return None if answer.is_constant() and answer.as_constant() is NotImplemented else answer

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        own = self._own(tr, f"__{COMPARE_SLOTS[op]}__")
        return super().compare(tr, op, other) if own is None else self._answer(tr, own, other)

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        own = self._own(tr, f"__{BINARY_SLOTS[op]}__")
        return super().binary_op(tr, op, other) if own is None else self._answer(tr, own, other)

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        own = self._own(tr, f"__r{BINARY_SLOTS[op]}__")
        return super().reflected_op(tr, op, other) if own is None else self._answer(tr, own, other)

    def inplace_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        own = self._own(tr, f"__i{BINARY_SLOTS[op]}__")
        return super().inplace_op(tr, op, other) if own is None else self._answer(tr, own, other)

    def unary_op(self, tr: Tracer, op: str) -> Value:
        own = self._own(tr, UNARY_SLOTS[op])
        return super().unary_op(tr, op) if own is None else tr.call(own, [self], {})

    def getitem(self, tr: Tracer, key: Value) -> Value:
        own = self._own(tr, "__getitem__")
        return super().getitem(tr, key) if own is None else tr.call(own, [self, key], {})

    def contains(self, tr: Tracer, item: Value) -> Value:
        own = self._own(tr, "__contains__")
        return super().contains(tr, item) if own is None else tr.constant(tr.call(own, [self, item], {}).bool_(tr))

    def bool_(self, tr: Tracer) -> bool:
        own = self._own(tr, "__bool__")
        return (
            super().bool_(tr)
            if own is None
            else answered(tr, bool, "__bool__", self, tr.call(own, [self], {})).bool_(tr)
        )

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        own = self._own(tr, "__call__")
        return super().call(tr, args, kwargs) if own is None else tr.call(own, [self, *args], kwargs)

    def hash_key(self, tr: Tracer) -> object:
        if any(self._own(tr, name) is not None for name in ("__hash__", "__eq__")):
            self.refuse("hashing")
        return super().hash_key(tr)

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        """A method of `tuple`, whatever the class has in its place: `super().__eq__(other)`."""
        return TupleValue(self.unpack(tr)).call_method(tr, name, args, kwargs)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name in self.names:
            return tr.call(self.getattr_(tr, name), args, kwargs)
        found = type_lookup(self.cls, name)
        if found is not None and isinstance(found.raw, FunctionType) and name not in ("_replace", "_asdict"):
            return tr.call(entry_value(tr, self.cls, found, name, self.source), [self, *args], kwargs)
        return super().call_method(tr, name, args, kwargs)

    def m__replace(self, tr: Tracer, **kwargs: Value) -> Value:
        """`_replace(**fields)`."""
        unknown = [name for name in kwargs if name not in self.names]
        if unknown:
            tr.raise_(ValueError, f"Got unexpected field names: {unknown!r}")
        return NamedTupleValue([kwargs.get(name, self.at(i)) for i, name in enumerate(self.names)], self.cls)

    def m__asdict(self, tr: Tracer) -> Value:
        """`_asdict()`."""
        return new_dict(tr, [(tr.constant(name), self.at(index)) for index, name in enumerate(self.names)])

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
        elif is_structseq_class(self.cls):
            codegen.push_function(self.cls)
            self.push_items(codegen)
            codegen.call(1)
        else:
            codegen.push_function(tuple.__new__)
            codegen.load_const(self.cls)
            self.push_items(codegen)
            codegen.call(2)


def _make(cls: type, items: Iterable[Any]) -> Any:
    return cls(tuple(items)) if is_structseq_class(cls) else tuple.__new__(cls, items)


def is_named(obj: Any) -> bool:
    """Whether an object is a named tuple or a structure sequence without hidden fields."""
    cls = type(obj)
    if is_structseq_class(cls):
        return bool(cls.__dict__["n_fields"] == cls.__dict__["n_sequence_fields"])
    return has_named_items(cls)


def _build_named(tr: Tracer, obj: Any) -> Value:
    return NamedTupleValue([build(tr, item) for item in tuple.__iter__(obj)], type(obj))


builds_family(is_named)(_build_named)


@wraps_family(is_named, priority=5)
def wrap_named(tr: Tracer, obj: Any, source: Source) -> Value:
    """A named tuple met at a source: type guarded, items when they are looked at; it has no attributes beside them."""
    tr.guard(source, "TYPE_MATCH", type(obj))
    own = instance_dict(obj)
    if own is not None:
        if own:
            raise GraphBreak(MORE_THAN_ITEMS, f"{', '.join(own)} of {source.name}")
        tr.guard(InstanceDictSource(source), "LENGTH", 0)
    return NamedTupleValue(lazy_items(tr, tuple(obj), source), type(obj), source=source)

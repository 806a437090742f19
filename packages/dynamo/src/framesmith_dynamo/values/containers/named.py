"""Named tuples and torch's structured results (`torch.return_types.max`): tuples with names for their items."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Found, Tracer, Value
from framesmith_dynamo.values.constants.constant import plain
from framesmith_dynamo.values.containers.dict import new_dict
from framesmith_dynamo.values.containers.tuple import TupleValue, lazy_items
from framesmith_dynamo.values.holders import entry_value, instance_dict, type_lookup
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
ADDED = ("__bool__", "__getattr__")


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
        and all(found is not None and found.owner is tuple for found in (type_lookup(cls, one) for one in TUPLES_OWN))
        and all(type_lookup(cls, name) is None for name in ADDED)
    )


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
            return tr.call(tr.constant(_bind), [entry_value(tr, self.cls, found, name, self.source), self], {})
        if found is not None and isinstance(found.raw, property) and isinstance(found.raw.fget, FunctionType):
            return tr.call(entry_value(tr, self.cls, found, name, self.source, "fget"), [self], {})
        if name == "_fields":
            return tr.constant(self.names)
        return super().getattr_(tr, name)

    def delattr_(self, tr: Tracer, name: str) -> None:
        if type_lookup(self.cls, "__delattr__") != Found(object, object.__delattr__):
            self.refuse(f"deleting attribute {name!r}")
        try:
            object.__delattr__(_make(self.cls, [None] * len(self.items)), name)
        except AttributeError as error:
            tr.raise_(AttributeError, *error.args)

    def call_method(self, tr: Tracer, name: str, args: Any, kwargs: Any) -> Value:
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


def _bind(function: Any, owner: Any) -> Any:
    """The bound method, interpreted: a closure over the owner."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return function(owner, *args, **kwargs)

    return method


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

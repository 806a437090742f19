"""Objects of C or slotted types that only refer to others: properties, class and static methods, fields, weak
references.

Their type is guarded, and each part that is read: most cannot be referred to weakly.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_OPERATION, GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.lookup.entries import value_at
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import AttrSource, WeakRefSource

if TYPE_CHECKING:
    from framesmith_guards import Source

#: The readable attributes of each type.
FIELDS: Final[dict[type, frozenset[str]]] = {
    property: frozenset({"fget", "fset", "fdel", "__doc__"}),
    staticmethod: frozenset({"__func__", "__wrapped__", "__name__", "__qualname__", "__doc__"}),
    classmethod: frozenset({"__func__", "__wrapped__", "__name__", "__qualname__", "__doc__"}),
    dataclasses.Field: frozenset(dataclasses.Field.__slots__),
}


class RecordValue(Value):
    """A real object of one of the types of `FIELDS`, found at a source."""

    python_types = tuple(FIELDS)
    exact_operators = True
    __slots__ = ("obj",)

    def __init__(self, obj: Any, *, source: Source) -> None:
        super().__init__(source=source)
        self.obj = obj

    def python_type(self) -> type:
        return type(self.obj)

    def guard_identity(self, tr: Tracer) -> None:
        raise GraphBreak(UNSUPPORTED_OPERATION, f"the identity of {self.describe()}")

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(type(self.obj))
        if name in FIELDS[type(self.obj)]:
            assert self.source is not None
            return value_at(tr, getattr(self.obj, name), AttrSource(self.source, name))
        if not hasattr(type(self.obj), name):
            tr.raise_(AttributeError, f"'{type(self.obj).__name__}' object has no attribute '{name}'")
        return super().getattr_(tr, name)


@wraps_type(*FIELDS)
def wrap_record(tr: Tracer, obj: Any, source: Source) -> Value:
    tr.guard(source, "TYPE_MATCH", type(obj))
    return RecordValue(obj, source=source)


class WeakReferenceValue(Value):
    """An existing weak reference."""

    python_types = (weakref.ref,)
    __slots__ = ("ref",)

    def __init__(self, ref: weakref.ref[Any], *, source: Source) -> None:
        super().__init__(source=source)
        self.ref = ref

    def hash_key(self, tr: Tracer) -> object:
        return self.ref

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        assert self.source is not None
        return tr.wrap(self.ref(), WeakRefSource(self.source))


@wraps_type(weakref.ref)
def wrap_weak_reference(tr: Tracer, obj: weakref.ref[Any], source: Source) -> Value:
    """Wrap a weak reference found at a source; the referent is guarded when it is called."""
    tr.guard(source, "TYPE_MATCH", weakref.ref)
    return WeakReferenceValue(obj, source=source)

"""Objects of C or slotted types that only hold others: properties, class and static methods, dataclass fields.

They cannot be referred to weakly: their type is guarded, and each thing that is read of them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_OPERATION, GraphBreak
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.holders import value_at
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_guards import Source

#: What can be read of each type.
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

    def pin(self, tr: Tracer) -> None:
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
    """One met at a source."""
    tr.guard(source, "TYPE_MATCH", type(obj))
    return RecordValue(obj, source=source)

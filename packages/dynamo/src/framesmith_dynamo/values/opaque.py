"""Objects the tracer knows nothing about: they can be passed on and compared by identity, anything else breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.wrap_registry import wraps_protocol

if TYPE_CHECKING:
    from framesmith_guards import Source


class OpaqueValue(Value):
    """An object of a type without a value family, found at a source."""

    __slots__ = ("cls",)

    def __init__(self, cls: type, *, source: Source) -> None:
        super().__init__(source=source)
        self.cls = cls

    def python_type(self) -> type:
        return self.cls


@wraps_protocol(lambda obj: True, priority=1000)
def wrap_opaque(tr: Tracer, obj: Any, source: Source) -> Value:
    """The last resort: only the type is guarded."""
    tr.guard(source, "TYPE_MATCH", type(obj))
    return OpaqueValue(type(obj), source=source)

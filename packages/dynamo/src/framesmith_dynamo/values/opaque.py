"""Objects without a value family: they can be passed along, stored and returned; any use breaks the graph."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any, NoReturn

from framesmith_dynamo.breaks import UNSUPPORTED_OPERATION, BreakKind, GraphBreak, register_break
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.wrap_registry import Family, wraps_family

if TYPE_CHECKING:
    from framesmith_guards import Source

SHARED_BUFFER = register_break(
    "shared-buffer",
    what="a bytearray, an array or a memoryview is used",
    why="its memory may be shared with a tensor or another object, which neither guards nor the journal can follow",
    hint="use a list of numbers or bytes, or use it outside the compiled function",
)


class OpaqueValue(Value):
    """An object of which only the type is known (and guarded). `reason` is the break of its first use."""

    __slots__ = ("cls", "reason")

    def __init__(self, cls: type, source: Source, reason: GraphBreak) -> None:
        super().__init__(source=source)
        self.cls = cls
        self.reason = reason

    def python_type(self) -> type:
        return self.cls

    def bool_(self, tr: Tracer) -> bool:
        self.unsupported("truth testing")

    def unsupported(self, doing: str, *, kind: BreakKind = UNSUPPORTED_OPERATION) -> NoReturn:
        raise GraphBreak(self.reason.kind, f"{self.reason.detail} ({doing})") from self.reason

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self.unsupported(f"comparison {op}")


def _is_buffer(obj: Any) -> bool:
    return issubclass(type(obj), bytearray | array.array | memoryview)


@wraps_family(Family.BUFFER, _is_buffer)
def wrap_buffer(tr: Tracer, obj: Any, source: Source) -> Value:
    """Break: see `SHARED_BUFFER`."""
    raise GraphBreak(SHARED_BUFFER, f"a {type(obj).__qualname__} at {source.name}")

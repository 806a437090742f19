"""Objects the tracer has no value for: they can be passed along, stored and returned; any use breaks the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from framesmith_dynamo.breaks import UNSUPPORTED_OPERATION, BreakKind, GraphBreak
from framesmith_dynamo.values.base import Tracer, Value

if TYPE_CHECKING:
    from framesmith_guards import Source


class OpaqueValue(Value):
    """An object found at a source, of which only the type is known (and guarded). `reason` is why there is no more."""

    __slots__ = ("cls", "reason")

    def __init__(self, cls: type, source: Source, reason: GraphBreak) -> None:
        super().__init__(source=source)
        self.cls = cls
        self.reason = reason

    def python_type(self) -> type:
        return self.cls

    def bool_(self, tr: Tracer) -> bool:
        self.refuse("truth testing")

    def refuse(self, doing: str, *, kind: BreakKind = UNSUPPORTED_OPERATION) -> NoReturn:
        raise GraphBreak(self.reason.kind, f"{self.reason.detail} ({doing})") from self.reason

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self.refuse(f"comparison {op}")

"""Errors for callers that asked not to have calls run eagerly: by `fullgraph`, or by `strict`."""

from __future__ import annotations

from framesmith_dynamo.breaks import GraphBreak


class BreakNotAllowed(RuntimeError):
    """The graph breaks, and `fullgraph=True` was asked for. `broken` is the break."""

    def __init__(self, broken: GraphBreak) -> None:
        super().__init__(f"fullgraph=True, but the graph breaks: {broken.explain()}")
        self.broken = broken


class EagerNotAllowed(RuntimeError):
    """A call would run eagerly, for `reason`, and `fullgraph=True` was asked for."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"fullgraph=True, but {name} runs eagerly: {reason}")
        self.reason = reason


class RecompileLimit(RuntimeError):
    """A function was compiled as often as allowed, and none of its entries applies."""

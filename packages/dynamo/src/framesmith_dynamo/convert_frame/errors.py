"""Errors for callers that asked not to have calls run eagerly, by `fullgraph` or by `strict`; and why one did."""

from __future__ import annotations

from framesmith_dynamo.breaks import GraphBreak

#: How a program asks for an error where the graph breaks.
FULLGRAPH = "fullgraph=True"
ERROR_ON_BREAK = "torch._dynamo.error_on_graph_break(True)"


class BreakNotAllowed(RuntimeError):
    """The graph breaks, and the program has asked for an error then. `broken` is the break, `asked` how it has."""

    def __init__(self, broken: GraphBreak, asked: str = FULLGRAPH) -> None:
        super().__init__(f"{asked}, but the graph breaks: {broken.explain()}")
        self.broken = broken


class EagerNotAllowed(RuntimeError):
    """A call would run eagerly, for `reason`, and `fullgraph=True` was asked for."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"fullgraph=True, but {name} runs eagerly: {reason}")
        self.reason = reason


class NotRaised(RuntimeError):
    """Tracing came to an exception, so that the call ran eagerly, and the program raised none."""


class RecompileLimit(RuntimeError):
    """A function was compiled as often as allowed, and none of its entries applies."""

"""Errors for callers that forbid eager calls, by `fullgraph` or `strict`."""

from __future__ import annotations

from framesmith_dynamo.breaks import GraphBreak

#: The ways in which a program asks for an error at a graph break.
FULLGRAPH = "fullgraph=True"
ERROR_ON_BREAK = "torch._dynamo.error_on_graph_break(True)"


class BreakNotAllowed(RuntimeError):
    """The graph breaks (`broken`) where the program has forbidden it (`asked`: the option)."""

    def __init__(self, broken: GraphBreak, asked: str = FULLGRAPH) -> None:
        super().__init__(f"{asked}, but the graph breaks: {broken.explain()}")
        self.broken = broken


class EagerNotAllowed(RuntimeError):
    """A call would run eagerly, for `reason`, under `fullgraph=True`."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"fullgraph=True, but {name} runs eagerly: {reason}")
        self.reason = reason


class NotRaised(RuntimeError):
    """The trace ended in an exception, so the call ran eagerly, and the program did not raise it."""


class RecompileLimit(RuntimeError):
    """A function has reached its recompile limit, and no entry applies."""

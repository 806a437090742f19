"""The errors this package raises on purpose."""

from __future__ import annotations


class TraceUnsupported(RuntimeError):
    """A call cannot be recorded without changing its meaning.

    `id` is stable and short (for tables and tests), `what` names the construct, `why` gives the reason.
    """

    def __init__(self, id: str, what: str, why: str) -> None:
        super().__init__(f"{what}: {why} [{id}]")
        self.id = id
        self.what = what
        self.why = why


class GraphInvariantError(RuntimeError):
    """A graph breaks an invariant of `verify`: a defect of what made it."""

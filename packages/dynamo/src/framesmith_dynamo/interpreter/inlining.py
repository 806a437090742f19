"""Which Python functions are interpreted in place when called, and how deep."""

from __future__ import annotations

from types import FunctionType

from framesmith_dynamo.admission.frame_policy import why_not_inlined
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.trace_state import TraceState

MAX_DEPTH = 80

TOO_DEEP = register_break(
    "inlining-too-deep",
    what="calls are nested too deeply to interpret in place",
    why=f"more than {MAX_DEPTH} Python calls are open at once",
    hint="recursion over data is better run outside the compiled function",
)
NOT_INLINED = register_break(
    "not-inlined",
    what="a Python function is never interpreted in place",
    why="it was disabled, or belongs to a library whose code has effects outside the trace",
    hint="the call runs as plain Python between two graphs",
)


def check(state: TraceState, function: FunctionType) -> None:
    """Break when a function is not to be inlined here."""
    if state.depth >= MAX_DEPTH:
        raise GraphBreak(TOO_DEEP, function.__qualname__)
    reason = why_not_inlined(function.__code__)
    if reason is not None:
        raise GraphBreak(NOT_INLINED, f"{function.__module__}.{function.__qualname__}: {reason}")

"""Inlining policy: the Python functions interpreted inside the trace when called, and the maximal depth."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

from framesmith_dynamo.admission.costly_callees import blame
from framesmith_dynamo.admission.frame_policy import why_not_inlined
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import TracedRaise

if TYPE_CHECKING:
    from framesmith_dynamo.trace_state import OpenFrame, TraceState
    from framesmith_dynamo.values.base import Value

MAX_DEPTH = 80

TOO_DEEP = register_break(
    "inlining-too-deep",
    what="calls are nested too deeply to inline",
    why=f"more than {MAX_DEPTH} Python calls are open at once",
    hint="run recursion over data outside the compiled function",
)
NOT_INLINED = register_break(
    "not-inlined",
    what="a Python function is never inlined",
    why="it was disabled, or belongs to a library whose code has effects outside the trace",
    hint="the call runs eagerly between two graphs",
)
NEVER_WORTH_IT = register_break(
    "never-worth-inlining",
    what="a Python function is no longer inlined",
    why="the graph broke inside of it for the same reason in each caller, or the compiler failed on it",
    hint="move the breaking code out of the function, or mark it with framesmith.disable, which saves the attempts",
)
FOREIGN_NAMES = register_break(
    "globals-of-a-subclass",
    what="a function is called whose globals are of a subclass of dict",
    why="the class may compute the names that they lack",
    hint="the call runs eagerly between two graphs",
)


def check(state: TraceState, function: FunctionType) -> None:
    """Break if a function must not be inlined here."""
    if state.depth >= MAX_DEPTH:
        raise GraphBreak(TOO_DEEP, function.__qualname__)
    if type(function.__globals__) is not dict:
        raise GraphBreak(FOREIGN_NAMES, f"{function.__module__}.{function.__qualname__}")
    reason = why_not_inlined(function.__code__, function.__globals__)
    if reason is not None:
        raise GraphBreak(NOT_INLINED, f"{function.__module__}.{function.__qualname__}: {reason}")
    refusal = state.callees.refusal_of(function.__code__)
    if refusal is not None:
        broken = GraphBreak(NEVER_WORTH_IT, f"{function.__module__}.{function.__qualname__}: {refusal.reason}")
        broken.site_of_cause = refusal.site
        raise broken


def run(state: TraceState, child: OpenFrame, function: FunctionType) -> Value:
    """Interpret a function's frame, and record the outcome."""
    state.depth += 1
    try:
        value = state.run(child)
    except TracedRaise:
        raise
    except Exception as error:
        if not (isinstance(error, GraphBreak) and error.kind is NEVER_WORTH_IT):
            blame(error, function.__code__)
        raise
    finally:
        state.depth -= 1
    state.callees.worked(function.__code__)
    return value

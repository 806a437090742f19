"""The identity of a compilation, and the state of the thread that it runs in."""

from framesmith_guards.contexts.compiling import CompileContext, compile_context
from framesmith_guards.contexts.identity import CompileId, TraceId

__all__ = [
    "CompileContext",
    "CompileId",
    "TraceId",
    "compile_context",
]

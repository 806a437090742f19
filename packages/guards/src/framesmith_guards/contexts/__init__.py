"""What a compilation knows of itself: its identity, guards, modules, global state and place in the user's program."""

from framesmith_guards.contexts.checkpoints import Checkpoint, Checkpointable
from framesmith_guards.contexts.compiling import CompileContext, compile_context
from framesmith_guards.contexts.gathered import GlobalContext, GuardsContext, ModuleContext
from framesmith_guards.contexts.identity import CompileId, TraceId
from framesmith_guards.contexts.tracing import TracingContext, detect_fake_mode, tracing

__all__ = [
    "Checkpoint",
    "Checkpointable",
    "CompileContext",
    "CompileId",
    "GlobalContext",
    "GuardsContext",
    "ModuleContext",
    "TraceId",
    "TracingContext",
    "compile_context",
    "detect_fake_mode",
    "tracing",
]

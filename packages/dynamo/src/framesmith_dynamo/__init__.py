"""The symbolic interpreter: a Python frame becomes an FX graph, guards and residual code."""

from framesmith_dynamo.__about__ import __version__
from framesmith_dynamo.breaks import BREAKS, BreakKind, GraphBreak
from framesmith_dynamo.convert import BreakNotAllowed, FrameConverter, RecompileLimit
from framesmith_dynamo.events import FrameEvent
from framesmith_dynamo.frame_policy import disable, is_disabled
from framesmith_dynamo.graph import GraphInput

__all__ = [
    "BREAKS",
    "BreakKind",
    "BreakNotAllowed",
    "FrameConverter",
    "FrameEvent",
    "GraphBreak",
    "GraphInput",
    "RecompileLimit",
    "__version__",
    "disable",
    "is_disabled",
]

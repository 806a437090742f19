"""The symbolic interpreter: a Python frame becomes an FX graph, guards and residual code."""

from framesmith_dynamo.__about__ import __version__
from framesmith_dynamo.admission.frame_policy import (
    INTEREST_PACKAGES,
    admit,
    disable,
    is_disabled,
    why_not_compiled,
)
from framesmith_dynamo.admission.global_state import CUDA_GRAPH_CAPTURED
from framesmith_dynamo.breaks import BREAKS, BreakKind, GraphBreak
from framesmith_dynamo.convert_frame.converter import FrameConverter
from framesmith_dynamo.convert_frame.dynamic_marks import (
    MarkViolated,
    mark_dynamic,
    mark_static,
    mark_unbacked,
    maybe_mark_dynamic,
)
from framesmith_dynamo.convert_frame.errors import BreakNotAllowed, EagerNotAllowed, RecompileLimit
from framesmith_dynamo.convert_frame.events import FrameEvent
from framesmith_dynamo.convert_frame.pure_calls import NotPure, PureCall, trace_pure_call
from framesmith_dynamo.convert_frame.torch_hook import skipped_by_torch
from framesmith_dynamo.graph.finished import GraphInput
from framesmith_dynamo.residual.raising import raising
from framesmith_dynamo.torch_switches import resets
from framesmith_dynamo.torch_switches.decorators import innermost
from framesmith_dynamo.torch_switches.resets import RESET_LISTENERS
from framesmith_dynamo.torch_switches.settings import SwitchWarning, is_off, memory_budget
from framesmith_dynamo.torch_switches.stances import StanceForbids

resets.listen()

__all__ = [
    "BREAKS",
    "CUDA_GRAPH_CAPTURED",
    "INTEREST_PACKAGES",
    "RESET_LISTENERS",
    "BreakKind",
    "BreakNotAllowed",
    "EagerNotAllowed",
    "FrameConverter",
    "FrameEvent",
    "GraphBreak",
    "GraphInput",
    "MarkViolated",
    "NotPure",
    "PureCall",
    "RecompileLimit",
    "StanceForbids",
    "SwitchWarning",
    "__version__",
    "admit",
    "disable",
    "innermost",
    "is_disabled",
    "is_off",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "memory_budget",
    "raising",
    "skipped_by_torch",
    "trace_pure_call",
    "why_not_compiled",
]

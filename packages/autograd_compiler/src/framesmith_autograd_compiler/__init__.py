"""The autograd engine's backward pass captured as one FX graph."""

from framesmith_autograd_compiler.__about__ import __version__
from framesmith_autograd_compiler.engine import (
    Capture,
    capture,
    disable,
    disabled,
    enable,
    is_capturing,
    why_not_available,
)
from framesmith_autograd_compiler.errors import AutogradCompilerError, CaptureUnsupported
from framesmith_autograd_compiler.program import Program
from framesmith_autograd_compiler.programs import Programs
from framesmith_autograd_compiler.segments.runner import CompilerFn
from framesmith_autograd_compiler.segments.user_code import PureCall, TraceCall

__all__ = [
    "AutogradCompilerError",
    "Capture",
    "CaptureUnsupported",
    "CompilerFn",
    "Program",
    "Programs",
    "PureCall",
    "TraceCall",
    "__version__",
    "capture",
    "disable",
    "disabled",
    "enable",
    "is_capturing",
    "why_not_available",
]

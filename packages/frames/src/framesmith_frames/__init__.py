"""A PEP 523 frame hook with a per-code cache and native dispatch.

Every Python function called on a thread is offered to the thread's callback; its answer is cached on the code object,
and later calls to which the answer's check applies run the cached code.
"""

import warnings

from framesmith_frames import supported as supported  # before the extension: it refuses some interpreters
from framesmith_frames._hook import (
    RUN_ONCE,
    SKIP,
    CompiledFunction,
    Entry,
    FrameInfo,
    always_offer,
    divert_by,
    entries,
    get_callback,
    hook_state,
    new_cache,
    reset,
    set_callback,
    set_error_handler,
    set_interest_filter,
    skip,
    skip_reason,
    unskip,
    without_hook,
)
from framesmith_frames.activation import activated, deactivated
from framesmith_frames.contracts import Check, Diversion, ErrorHandler, FrameCallback, InputsCheck
from framesmith_frames.statistics import CodeStats, stats
from framesmith_frames.watching import watch

__all__ = [
    "RUN_ONCE",
    "SKIP",
    "Check",
    "CodeStats",
    "CompiledFunction",
    "Diversion",
    "Entry",
    "ErrorHandler",
    "FrameCallback",
    "FrameInfo",
    "InputsCheck",
    "activated",
    "always_offer",
    "deactivated",
    "divert_by",
    "entries",
    "get_callback",
    "hook_state",
    "new_cache",
    "reset",
    "set_callback",
    "set_error_handler",
    "set_interest_filter",
    "skip",
    "skip_reason",
    "stats",
    "unskip",
    "watch",
    "without_hook",
]

_RENAMED = {"ask_only_about": "set_interest_filter", "always_ask": "always_offer"}  # old-name


def __getattr__(name: str) -> object:
    """Return what a deprecated name now names, with a FutureWarning."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is deprecated: use {_RENAMED[name]!r}", FutureWarning, stacklevel=2)
    return globals()[_RENAMED[name]]

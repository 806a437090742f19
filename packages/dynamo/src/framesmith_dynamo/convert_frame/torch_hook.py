"""Living beside torch.compile's own frame hook: what is made here is not for it to compile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, TypeVar

from framesmith_dynamo.residual.continuations import is_continuation
from framesmith_dynamo.torch_adapter import unstable
from framesmith_frames import Entry

Function = TypeVar("Function", bound=Callable[..., Any])

# torch's C part of its frame hook; there is nothing to do for a torch without it.
_HOOK: Any = unstable.eval_frame


def hide_from_torch_compile(entry: Entry) -> None:
    """Mark the code that runs in a frame's place, and continuations in it, as not to be compiled by torch.compile.

    What code with breaks calls, it may still compile; what an entry without breaks calls is a compiled graph.
    """
    continuations = [const for const in entry.code.co_consts if isinstance(const, CodeType) and is_continuation(const)]
    skip([entry.code, entry.flat_code, *continuations], calls_too=entry.complete)


def skipped_by_torch(function: Function) -> Function:
    """A decorator: torch.compile around a compiled function compiles neither this nor what it calls."""
    skip([function.__code__], calls_too=True)
    return function


def skip(codes: Iterable[CodeType], *, calls_too: bool) -> None:
    """Make torch.compile leave frames of these alone; with `calls_too`, all they call as well."""
    if hasattr(_HOOK, "set_code_exec_strategy"):
        action = _HOOK._FrameAction
        strategy = _HOOK._FrameExecStrategy(action.SKIP, action.SKIP if calls_too else action.DEFAULT)
        for code in codes:
            _HOOK.set_code_exec_strategy(code, strategy)

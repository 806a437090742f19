"""Coexistence with torch.compile's frame hook: code generated here is not compiled by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, TypeVar

from framesmith_bytecode import is_continuation
from framesmith_dynamo.torch_adapter import unstable
from framesmith_frames import Entry

Function = TypeVar("Function", bound=Callable[..., Any])

# torch's C module of its frame hook; None in a torch without it.
_HOOK: Any = unstable.eval_frame


def hide_from_torch_compile(entry: Entry) -> None:
    """Exclude an entry's code and its continuations from torch.compile.

    Functions called by code with breaks may still be compiled by it; an entry without breaks calls a compiled graph
    only.
    """
    continuations = [const for const in entry.code.co_consts if isinstance(const, CodeType) and is_continuation(const)]
    skip([entry.code, entry.flat_code, *continuations], calls_too=entry.complete)


def skipped_by_torch(function: Function) -> Function:
    """Decorator: torch.compile compiles neither this function nor its callees."""
    skip([function.__code__], calls_too=True)
    return function


def skip(codes: Iterable[CodeType], *, calls_too: bool) -> None:
    """Make torch.compile skip frames of these code objects; with `calls_too`, their callees as well."""
    if hasattr(_HOOK, "set_code_exec_strategy"):
        action = _HOOK._FrameAction
        strategy = _HOOK._FrameExecStrategy(action.SKIP, action.SKIP if calls_too else action.DEFAULT)
        for code in codes:
            _HOOK.set_code_exec_strategy(code, strategy)

"""Errors of operations on fakes: torch's, which speak for the operation, or defects of this package."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OWN: Final = __name__.rpartition(".")[0]
_TORCHS: Final = "torch"


def is_defect(error: BaseException) -> bool:
    """Whether code of this folder failed, rather than torch's rules or the operation.

    It did where, among functions of torch and of this folder, the last one called is of this folder and does not hand
    its call on to a kernel in C++. A RecursionError is no defect.
    """
    if isinstance(error, RecursionError):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    named = [(frame.f_globals.get("__name__", ""), frame.f_code) for frame in frames]
    whose = [one for one in named if one[0].startswith(_OWN) or one[0].partition(".")[0] == _TORCHS]
    return bool(whose) and whose[-1][0].startswith(_OWN) and whose[-1][1] not in _HANDING_ON


def hands_on(function: _Function) -> _Function:
    """Mark a function that hands its call on to torch: errors raised in it, not deeper, are the operator's."""
    _HANDING_ON.add(cast(FunctionType, function).__code__)
    return function


_HANDING_ON: Final[set[CodeType]] = set()

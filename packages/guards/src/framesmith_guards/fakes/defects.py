"""Whose error it is that an operation on fakes raised: torch's, which speaks for the operation, or this package's."""

from __future__ import annotations

import traceback
from typing import Final

_OWN: Final = __name__.rpartition(".")[0]
_TORCHS: Final = "torch"


def is_defect(error: BaseException) -> bool:
    """Whether what was changed of torch's fakes failed, not torch's own rules or the operation.

    It did where of torch's functions and those of this folder the last one called is of this folder. Running out of
    the stack is nobody's.
    """
    if isinstance(error, RecursionError):
        return False
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    whose = [name for name in names if name.startswith(_OWN) or name.partition(".")[0] == _TORCHS]
    return bool(whose) and whose[-1].startswith(_OWN)

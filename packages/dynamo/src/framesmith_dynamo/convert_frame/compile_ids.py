"""Compilation ids: the number of the code object in the process, and how often it was compiled before."""

from __future__ import annotations

import functools
import itertools
import weakref
from types import CodeType
from typing import Any

from framesmith_guards import CompileId

_FRAMES = itertools.count()
#: By identity: equal code objects of different files are different frames.
_KNOWN: dict[int, tuple[weakref.ref[CodeType], int, itertools.count[int]]] = {}


def next_compile_id(code: CodeType) -> CompileId:
    """Return a new id for a compilation of `code`, unique in the process."""
    known = _KNOWN.get(id(code))
    if known is None or known[0]() is not code:
        forget = functools.partial(_forget, _KNOWN, id(code))
        known = _KNOWN[id(code)] = (weakref.ref(code, forget), next(_FRAMES), itertools.count())
    return CompileId(known[1], next(known[2]))


def _forget(known: dict[int, Any], key: int, _: object) -> None:
    """Drop a dead code object. The dictionary is an argument: at interpreter exit, module globals may go first."""
    known.pop(key, None)

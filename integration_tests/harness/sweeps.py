"""Sweeps of cases in several ways: long runs, `FRAMESMITH_LONG=1`, take each case in each way, others some in turn."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

LONG = bool(os.environ.get("FRAMESMITH_LONG"))


def in_turn(cases: Iterable[Any], ways: Sequence[Any], each: int = 1) -> list[tuple[Any, Any]]:
    """Each case with so many of the ways, the next ones for the next case; in long runs with all."""
    count = len(ways) if LONG else each
    return [(case, ways[(at * each + k) % len(ways)]) for at, case in enumerate(cases) for k in range(count)]


def a_part(cases: Iterable[Any], of: int) -> list[Any]:
    """The first case of each so many; in long runs all."""
    return [*cases][:: 1 if LONG else of]

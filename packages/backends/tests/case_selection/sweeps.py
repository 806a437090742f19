"""How much of a sweep a run takes: long ones, `FRAMESMITH_LONG=1`, all; others a part."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

LONG = bool(os.environ.get("FRAMESMITH_LONG"))
#: Of so many symbolic programs Triton's interpreter runs one, and of so many cases of rows and columns.
PROGRAMS_PART, CASES_PART = 6, 8


def examples(count: int) -> int:
    """How many of so many drawn cases are tried, each of which is compiled."""
    return count if LONG else max(count // 5, 15)


def a_part(cases: Iterable[Any], of: int, first: int = 0) -> list[Any]:
    """One case of each so many, beginning with that one; in long runs all."""
    return [*cases][0 if LONG else first % of :: 1 if LONG else of]

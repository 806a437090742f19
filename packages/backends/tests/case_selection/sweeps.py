"""The part of a sweep that a run takes: all in long runs, `FRAMESMITH_LONG=1`, else some cases."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

LONG = bool(os.environ.get("FRAMESMITH_LONG"))
#: Of so many symbolic programs Triton's interpreter runs one, and of so many cases of rows and columns.
PROGRAMS_PART, CASES_PART = 6, 8


def examples(count: int) -> int:
    """Return the number of drawn cases to try, of `count` in long runs; each is compiled."""
    return count if LONG else max(count // 5, 15)


def a_part(cases: Iterable[Any], of: int, first: int = 0) -> list[Any]:
    """Return every `of`-th case, beginning with number `first`; in long runs all."""
    return [*cases][0 if LONG else first % of :: 1 if LONG else of]

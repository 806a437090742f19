"""Checks of a script, each made though others fail."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable

from case_selection.sweeps import a_part

Attempt = tuple[str, Callable[[], None]]
#: Of so many attempts of a script one is made by default.
PART = 16


def some(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the attempts that a run makes: in long runs all."""
    return a_part(attempts, PART)


def failures_of(attempts: Iterable[Attempt]) -> int:
    """Return the number of attempts that fail; print a line for each attempt."""
    failures = 0
    for name, attempt in attempts:
        try:
            attempt()
            print("ok", name, flush=True)
        except Exception:
            failures += 1
            print("FAILED", name)
            traceback.print_exc(file=sys.stdout, limit=-4)
    return failures

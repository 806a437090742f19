"""Checks of a script, each made though others fail."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable


def failures_of(attempts: Iterable[tuple[str, Callable[[], None]]]) -> int:
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

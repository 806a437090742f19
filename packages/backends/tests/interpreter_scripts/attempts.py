"""Checks of a script, each made whatever became of the others."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable


def failures_of(attempts: Iterable[tuple[str, Callable[[], None]]]) -> int:
    """How many of them fail; each is told of by a line."""
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

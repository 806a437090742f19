"""Counts of the hook for one code object."""

from typing import NamedTuple

from framesmith_frames._hook import counts, skip
from framesmith_frames.contracts import HasCode


class CodeStats(NamedTuple):
    """Counts since the last reset.

    `hits`: calls that ran an entry. `misses`: calls for which no entry applied. `skips`: calls that ran
    eagerly because of a skip mark. `run_once`: answers of RUN_ONCE. `rejected`: new entries whose check refused the
    call for which they were made. `errors`: exceptions of callbacks and checkers. `filtered`: calls that ran eagerly
    because of the interest filter. `reason`: that of the latest SKIP, RUN_ONCE or skip().
    """

    hits: int
    misses: int
    skips: int
    run_once: int
    rejected: int
    errors: int
    filtered: int
    reason: str | None


def stats(code: HasCode) -> CodeStats:
    """The counts of a code object (or of a function's or method's code)."""
    # Not CodeStats(...): its __new__ is a Python function, and would be offered to the callback.
    return tuple.__new__(CodeStats, counts(code))


skip(stats, "framesmith_frames itself")

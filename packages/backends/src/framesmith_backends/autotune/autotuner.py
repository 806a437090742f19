"""The autotuner and its cache: candidates of one computation are timed side by side, and the fastest is chosen.

Timings are stored in memory and in the cache folder, a file each: `choice-<key>.json`, which holds the seconds of each
candidate. Timings of a busy machine are taken again by the next processes; after some of those, the best of all count.
A file that does not fit is ignored, and its candidates are timed again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from framesmith_backends import storage

#: Another candidate is chosen if its time is less than this part of the baseline's.
MARGIN = 0.98
#: The number of processes that time candidates on a busy machine before the best times of all of them are used.
MOST_BUSY = 3
#: The format of files, part of every key.
FORMAT = 1

#: Seconds by the names of candidates.
Times = Mapping[str, float]


class Timing(NamedTuple):
    """Times of candidates; `busy` is the number of processes that measured them on a busy machine, 0 on a quiet one."""

    times: Times
    busy: int = 0


class Candidates(Protocol):
    """The names of a computation's candidates: the baseline, and others in the order of reports."""

    @property
    def baseline(self) -> str: ...

    @property
    def others(self) -> tuple[str, ...]: ...


Some = TypeVar("Some", bound=Candidates)


def key_of(*parts: object) -> str:
    """The digest of all that times depend on."""
    return hashlib.sha256(repr((FORMAT, *parts)).encode()).hexdigest()[:32]


def fastest(times: Times, one: Candidates, margin: float = MARGIN, seconds: float = 0.0) -> str | None:
    """The candidate that saves enough of the baseline's time, and more than so many seconds; None if none does."""
    if one.baseline not in times:
        return None
    limit = min(margin * times[one.baseline], times[one.baseline] - seconds)
    best = min((name for name in one.others if name in times), key=times.__getitem__, default=None)
    return best if best is not None and times[best] < limit else None


class Autotuner:
    """The timings by one clock that this process knows. With one lock: nothing is timed beside something else."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[str, Timing] = {}

    def timings(
        self, trials: Mapping[str, Some], measure: Callable[[Sequence[Some]], Iterable[Timing | None]]
    ) -> dict[str, Timing]:
        """The timings of candidates by their keys; `measure` is given those that lack one, and may return None."""
        with self._lock:
            self._known |= {
                key: stored
                for key, one in trials.items()
                if key not in self._known and (stored := _stored(key, one)) is not None
                if not 0 < stored.busy < MOST_BUSY
            }
            missing = {key: one for key, one in trials.items() if key not in self._known}
            measured = measure([*missing.values()]) if missing else ()
            for (key, one), timing in zip(missing.items(), measured, strict=True):
                if timing is not None:
                    self._known[key] = _store(key, one, timing)
            return {key: self._known[key] for key in trials if key in self._known}


@functools.cache
def autotuner(clock: Literal["cpu", "device"]) -> Autotuner:
    """Return the autotuner of a clock: compiling for the CPU does not wait for trials on a device."""
    return Autotuner()


def _store(key: str, one: Candidates, timing: Timing) -> Timing:
    """Write a timing to disk; of a busy machine, with the best times of those before. Returns the timing to use."""
    before = _stored(key, one) if timing.busy else None
    if before is not None:
        if not before.busy:  # another process has met a quiet machine since
            return before
        best = {name: min(seconds, before.times.get(name, seconds)) for name, seconds in timing.times.items()}
        timing = Timing(best, before.busy + timing.busy)
    content = {"format": FORMAT, "times": dict(timing.times), "busy": timing.busy}
    storage.write(_file(key), json.dumps(content).encode())
    return timing


def _stored(key: str, one: Candidates) -> Timing | None:
    """The timing on disk; None if there is none, or if it is of other candidates."""
    try:
        known: Any = json.loads(storage.read(_file(key)) or b"null")
    except ValueError:
        return None
    if not isinstance(known, dict) or known.get("format") != FORMAT:
        return None
    times, busy = known.get("times"), known.get("busy", 0)
    if not isinstance(times, dict) or type(busy) is not int or one.baseline not in times:
        return None
    fits = times.keys() <= {one.baseline, *one.others}
    return Timing(times, busy) if fits and all(isinstance(v, float) and v > 0 for v in times.values()) else None


def _file(key: str) -> str:
    return f"choice-{key}.json"

"""The autotuner cache: candidates of one computation, timed side by side, equal ones once, and stored on disk.

A `Trial` is a computation with its candidates, one of them present: it stays where none is faster by a margin, where
none could be timed, and while a CUDA graph is captured. A `Clock` times trials.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from framesmith_backends import storage
from framesmith_backends.ir.matmul import Item
from framesmith_backends.ir.program import Layout, Program
from framesmith_backends.ir.symbolic.size import Size
from framesmith_backends.render.triton.horizontal import Launch
from framesmith_backends.reporting import PLANS, warn_once

#: A form is taken if its time is less than this part of the present one's.
MARGIN = 0.98
#: The name of what the present candidate launches before its call.
BEFORE = "before"
#: Of what is written to disk.
FORMAT = 1

#: Integers that are written without being read are below this at first.
ANY_INTEGERS = 128

#: Seconds by the names of candidates.
Times = Mapping[str, float]
#: Buffers by their names.
Buffers = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Experiment:
    """The launches of a trial's candidates, and their buffers.

    `launches` has for each candidate the items of a run and their launches. `call` comes before the launches of
    the present candidate, and behind those called `BEFORE`; it gives the buffer `result`, which those read. `written`
    are the buffers whose contents are compared. `cold` are those that are met in memory, not in the cache.
    `bounds` says below which number the elements of a buffer of integers are, where these are indices, factors or
    written without being read; others are zeros. The clock takes `seconds` at most for it.
    """

    launches: Mapping[str, tuple[Sequence[Item], Sequence[Launch]]]
    layouts: Mapping[str, Layout]
    written: tuple[str, ...]
    cold: frozenset[str]
    seconds: float
    call: Callable[[Buffers], torch.Tensor] | None = None
    result: str = ""
    bounds: Mapping[str, int] = field(default_factory=dict)


class Trial(Protocol):
    """A computation and its candidates by name: the present one, and others in the order of reports."""

    @property
    def name(self) -> str: ...

    @property
    def present(self) -> str: ...

    @property
    def others(self) -> tuple[str, ...]: ...

    def key(self, program: Program, about: tuple[object, ...]) -> str:
        """The digest of all that the times depend on: equal for computations that differ in names only."""

    def experiment(self, program: Program) -> Experiment: ...


class Clock(Protocol):
    """A clock for candidates. `about` names the device and its compilers: times are good for these alone."""

    @property
    def about(self) -> tuple[object, ...]: ...

    @property
    def capability(self) -> int: ...

    @property
    def processors(self) -> int: ...

    def is_free(self) -> bool:
        """Whether anything may be launched now."""

    def times(self, trials: Sequence[Any], program: Program) -> list[Times | Exception]:
        """Seconds of each trial's candidates that run, by name; or the error that kept it from being timed."""


class TooLarge(Exception):
    """A trial does not fit in the device's free memory; its present candidate is no worse than it was."""


def times_of(
    trials: Sequence[Trial],
    program: Program,
    clock: Clock | None,
    failed: Callable[[Exception], None],
    most: int | None = None,
) -> list[Times]:
    """The times of each trial; none where there is no clock, or it is not free.

    Of trials that differ the first `most` are timed, or were before; `failed` is called for those that could not be.
    """
    if clock is None or not trials or not clock.is_free():
        return [{}] * len(trials)
    keys = [trial.key(program, clock.about) for trial in trials]
    wanted: dict[str, Trial] = {}
    for key, trial in zip(keys, trials, strict=True):
        if most is None or len(wanted) < most:
            wanted.setdefault(key, trial)
    known = {key: times for key, trial in wanted.items() if (times := _kept(key, trial)) is not None}
    fresh = {key: trial for key, trial in wanted.items() if key not in known}
    if fresh:
        known |= _timed(clock, fresh, program, failed)
    return [known.get(key, {}) for key in keys]


def _timed(
    clock: Clock, fresh: Mapping[str, Trial], program: Program, failed: Callable[[Exception], None]
) -> dict[str, Times]:
    """The clock's times of each, stored on disk."""
    found: dict[str, Times] = {}
    for (key, trial), times in zip(fresh.items(), clock.times([*fresh.values()], program), strict=True):
        if isinstance(times, Exception):
            PLANS.info("%s was not timed: %s", trial.name, times)
            if isinstance(times, TooLarge):
                warn_once(f"kernels and matmuls are not measured where {times}; they run by their present candidates")
            else:
                failed(times)
        else:
            found[key] = times
            storage.write(_file(key), json.dumps({"format": FORMAT, "times": dict(times)}).encode())
    return found


def fastest(times: Times, present: str, others: Sequence[str]) -> str | None:
    """The form that is faster than the present one by the margin, or None."""
    if present not in times:
        return None
    best = min((name for name in others if name in times), key=lambda name: times[name], default=None)
    return best if best is not None and times[best] < MARGIN * times[present] else None


def lines_of(trial: Trial, head: str, times: Times, chosen: str | None) -> list[str]:
    """The report of a trial: the times of its candidates, or which would be measured."""
    lines = [head]
    if not times:
        lines.append(f"  unmeasured: {trial.present}; to be measured: {'; '.join(trial.others)}")
    best = trial.present if chosen is None else chosen
    for name, seconds in sorted(times.items(), key=lambda pair: pair[1]):
        lines.append(f"  {name}: {1e6 * seconds:.2f} us{', chosen' if name == best else ''}")
    return lines


def _file(key: str) -> str:
    return f"choice-{key}.json"


def _kept(key: str, trial: Trial) -> Times | None:
    """The times that the cache folder has; what does not fit is timed again."""
    times = _read(key, trial.present)
    return times if times is not None and times.keys() <= {trial.present, *trial.others} else None


def _read(key: str, present: str) -> dict[str, float] | None:
    content = storage.read(_file(key))
    if content is None:
        return None
    try:
        known: Any = json.loads(content)
    except ValueError:
        return None
    times = known.get("times") if isinstance(known, dict) and known.get("format") == FORMAT else None
    if not isinstance(times, dict) or present not in times:
        return None
    return times if all(isinstance(value, float) and value > 0 for value in times.values()) else None


def span(layout: Layout) -> int:
    """Elements from the first to the last, of a layout of fixed sizes."""
    if layout.numel == 0:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(ints(layout.shape), ints(layout.strides), strict=True))


def ints(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Sizes that are fixed."""
    assert all(isinstance(n, int) for n in sizes)
    return tuple(sizes)  # type: ignore[arg-type]

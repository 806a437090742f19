"""Trials of kernels on a device: what is launched in each candidate, the clock that times it, and the choices.

The baseline stays where none is faster by a margin, where none could be timed, and while a CUDA graph is
captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch

from framesmith_aten.contract import OnError
from framesmith_backends.autotune.autotuner import Candidates, Times, Timing, autotuner, fastest
from framesmith_backends.ir.matmul import Item
from framesmith_backends.ir.program import Layout, Program
from framesmith_backends.ir.symbolic.size import Size
from framesmith_backends.render.triton.horizontal import TritonLaunch
from framesmith_backends.reporting import PLAN_LOG, log_once

#: The name of what the baseline launches before its call.
BEFORE = "before"
#: Integers that are written without being read are below this at first.
ANY_INTEGERS = 128

#: Buffers by their names.
Buffers = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Experiment:
    """The launches of a trial's candidates, and their buffers.

    `launches` has for each candidate the items of a run and their launches. `call` comes before the launches of
    the baseline, and behind those called `BEFORE`; it gives the buffer `result`, which those read. `written`
    are the buffers whose contents are compared. `cold` are those that are met in memory, not in the cache.
    `bounds` says below which number the elements of a buffer of integers are, where these are indices, factors or
    written without being read; others are zeros. The clock takes `seconds` at most for it.
    """

    launches: Mapping[str, tuple[Sequence[Item], Sequence[TritonLaunch]]]
    layouts: Mapping[str, Layout]
    written: tuple[str, ...]
    cold: frozenset[str]
    seconds: float
    call: Callable[[Buffers], torch.Tensor] | None = None
    result: str = ""
    bounds: Mapping[str, int] = field(default_factory=dict)


class Trial(Candidates, Protocol):
    """A computation of a program, and its candidates."""

    @property
    def name(self) -> str: ...

    @property
    def head(self) -> str:
        """The first line of its report."""

    def chosen(self, which: int) -> Mapping[str, Any]:
        """The configuration of one of the other candidates, by the computation's name."""

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
    """A trial does not fit in the device's free memory; its baseline is no worse than it was."""


Found = TypeVar("Found")
Made = TypeVar("Made")


@dataclass(slots=True)
class Tuner(Generic[Found, Made]):
    """Chooses candidates for a graph's computations and reports them; without a `clock` the baselines.

    A computation that cannot be timed keeps its baseline, and `on_error` is called; without it, the error
    raises.
    """

    WHAT: ClassVar[str]
    #: Of trials that differ so many are timed, the first ones.
    MOST: ClassVar[int | None] = None

    clock: Clock | None = None
    on_error: OnError | None = None
    reports: dict[str, list[str]] = field(default_factory=dict)

    def trials(self, found: Sequence[Found], program: Program) -> Sequence[Trial]:
        """The trials of those that have other candidates."""
        raise NotImplementedError

    def __call__(self, found: Sequence[Found], program: Program) -> Mapping[str, Made]:
        """The configurations of candidates that are faster than the baselines, by the computation's name."""
        chosen: dict[str, Made] = {}
        try:
            trials = self.trials(found, program)
            for trial, times in zip(trials, self._times(trials, program), strict=True):
                name = fastest(times, trial)
                self.reports[trial.name] = [trial.head, *self._lines(trial, times, name or trial.baseline)]
                if name is not None:
                    chosen |= trial.chosen(trial.others.index(name))
        except Exception as error:  # the baselines are as good as ever
            self._failed(error)
            return {}
        return chosen

    def text(self) -> str:
        """The candidates, with their times."""
        return "\n".join(line for lines in self.reports.values() for line in lines)

    def _lines(self, trial: Trial, times: Times, best: str) -> list[str]:
        if not times and self.clock is not None:
            return ["  not measured"]
        if not times:
            return [f"  unmeasured: {trial.baseline}; to be measured: {'; '.join(trial.others)}"]
        return [
            f"  {name}: {1e6 * seconds:.2f} us{', chosen' if name == best else ''}"
            for name, seconds in sorted(times.items(), key=lambda pair: pair[1])
        ]

    def _failed(self, error: Exception) -> None:
        if self.on_error is None:
            raise error
        self.on_error(self.WHAT, error)

    def _times(self, trials: Sequence[Trial], program: Program) -> list[Times]:
        """The times of each trial; none where there is no clock, or it is not free."""
        clock = self.clock
        if clock is None or not trials or not clock.is_free():
            return [{}] * len(trials)
        keys = [trial.key(program, clock.about) for trial in trials]
        wanted: dict[str, Trial] = {}
        for key, trial in zip(keys, trials, strict=True):
            if self.MOST is None or len(wanted) < self.MOST:
                wanted.setdefault(key, trial)
        known = autotuner("device").timings(wanted, lambda missing: self._measured(clock, missing, program))
        return [known[key].times if key in known else {} for key in keys]

    def _measured(self, clock: Clock, trials: Sequence[Trial], program: Program) -> list[Timing | None]:
        return [self._timing(trial, times) for trial, times in zip(trials, clock.times(trials, program), strict=True)]

    def _timing(self, trial: Trial, times: Times | Exception) -> Timing | None:
        if not isinstance(times, Exception):
            return Timing(times)
        PLAN_LOG.info("%s was not timed: %s", trial.name, times)
        if isinstance(times, TooLarge):
            log_once(f"kernels and matmuls are not measured where {times}; they run by their baselines")
        else:
            self._failed(times)
        return None


def span(layout: Layout) -> int:
    """Elements from the first to the last, of a layout of fixed sizes."""
    if layout.numel == 0:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(ints(layout.shape), ints(layout.strides), strict=True))


def ints(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Sizes that are fixed."""
    assert all(isinstance(n, int) for n in sizes)
    return tuple(sizes)  # type: ignore[arg-type]

"""Whole models on a GPU, in all modes of the compilers: several processes compile, one at a time is timed.

The most instructive cases come first, since the deadlines may cut the rest off. Every candidate's third step is
compared with eager's: the result by its norm, and the gradients by theirs, all together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.harness.agreement import check_norms, distance
from benchmarks.harness.candidates import settings_of, wrap
from benchmarks.harness.device import synchronize
from benchmarks.harness.summary import models_table
from benchmarks.harness.timing import Row, Step, compare
from benchmarks.harness.workers import Job, Limits, share
from benchmarks.models.selection import Selection, title
from benchmarks.models.zoo import BOTH, MODELS, MODES, Model, make_step

#: Those that compile fast first: the deadline may cut the others off.
CANDIDATES = ("eager", "framesmith", "framesmith reduce-overhead", "torch.compile", "torch.compile reduce-overhead")
#: The number of the registry's models that come first.
FIRST = 20
#: Steps before one is compared: replaying compilers run once, record once, and replay.
STEPS = 3
ROUNDS, TARGET = 5, 0.02
#: Relative distances by norm. Convolutions of float32 compute in TF32, in eager mode as well.
NEAR = {"float32": 2e-2, "bfloat16": 2e-1}
#: The same where eager differs from itself with another seed.
NEAR_BY_CHANCE = 0.25
#: Results further from eager mode's may be so much further from float64 than these are.
AS_PRECISE = 1.5


def in_order(selection: Selection) -> list[tuple[Model, str, str]]:
    """The cases asked for: the first models' inference, their training, the rest's; float32 of what has both last."""
    wanted = list(selection.cases())
    ranks = {row.name: position for position, row in enumerate(MODELS)}

    def rank(case: tuple[Model, str, str]) -> tuple[int, int, int]:
        row, mode, dtype = case
        second = row.dtypes == BOTH and dtype == "float32"
        place = ranks[row.name]
        return 2 if second else int(place >= FIRST), MODES.index(mode), place

    return sorted(wanted, key=rank)


@dataclass
class Measured:
    """A case in a worker: eager's results, and where they are asked for those in float64, made once."""

    row: Model
    mode: str
    dtype: str
    rounds: int
    expected: list[list[torch.Tensor]] | None = None
    exact: list[list[torch.Tensor]] | None = None
    random: bool = False
    modules: dict[str, nn.Module] = field(default_factory=dict)

    def stepping(self, name: str) -> Callable[[], torch.Tensor]:
        """The candidate's step; its module is kept, for its gradients."""

        def wrapped(module: nn.Module) -> Callable[..., Any]:
            self.modules[name] = module
            return wrap(name, module, **settings_of(name))

        return make_step(self.row, self.mode, self.dtype, wrapped)

    def run(self, step: Callable[[], torch.Tensor], name: str, seed: int) -> tuple[list[list[torch.Tensor]], float]:
        """Copies of the last step's result and gradients, since replaying overwrites them, and the first's seconds."""
        torch.manual_seed(seed)
        start = time.perf_counter()
        out = step()
        synchronize()
        first = time.perf_counter() - start
        for _ in range(STEPS - 1):
            out = step()
        weights = [] if self.mode == "inference" else [*self.modules[name].parameters()]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in weights]
        return [[out.clone()], gradients], first

    def prepare(self, name: str) -> tuple[Step, float]:
        """Compiled, and its results compared."""
        if self.expected is None:
            eager = self.stepping("eager")
            (self.expected, _), (other, _) = self.run(eager, "eager", 0), self.run(eager, "eager", 1)
            self.random = differ(self.expected, other, NEAR[self.dtype] / 2)
        step = self.stepping(name)
        given, first = self.run(step, name, 2 if self.random else 0)
        for part, (one, expected) in enumerate(zip(given, self.expected, strict=True)):
            try:
                check_norms(one, expected, None if self.random else NEAR[self.dtype], NEAR_BY_CHANCE)
            except AssertionError:
                if self.random or not self.is_as_precise(one, part):
                    raise
        return step, first

    def is_as_precise(self, given: list[torch.Tensor], part: int) -> bool:
        """Whether the result, or the gradients, are about as near to those in float64 as eager's are."""
        assert self.expected is not None
        if self.exact is None:

            def kept(module: nn.Module) -> nn.Module:
                self.modules["float64"] = module
                return module

            self.exact, _ = self.run(make_step(self.row, self.mode, "float64", kept), "float64", 0)
        return distance(given, self.exact[part]) <= AS_PRECISE * distance(self.expected[part], self.exact[part])

    def release(self) -> None:
        """Forget what was only for the comparison."""
        self.expected, self.exact, self.modules = None, None, {}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def measure(self, steps: dict[str, Step]) -> list[Row]:
        return compare(title(self.row, self.mode, self.dtype), steps, rounds=self.rounds, target=TARGET)


def differ(one: list[list[torch.Tensor]], other: list[list[torch.Tensor]], near: float) -> bool:
    """Whether results differ by more than that."""
    try:
        for mine, theirs in zip(one, other, strict=True):
            check_norms(mine, theirs, near, NEAR_BY_CHANCE)
    except AssertionError:
        return True
    return False


def jobs(asked: dict[str, Any]) -> list[Job]:
    """A worker's view of what was asked for."""
    selection = Selection(**asked)
    found = []
    for row, mode, dtype in in_order(selection):
        case = Measured(row, mode, dtype, selection.rounds_or(ROUNDS))
        names = tuple(selection.among(CANDIDATES))
        found.append(Job(title(row, mode, dtype), names, case.prepare, case.measure, case.release))
    return found


def run(selection: Selection | None = None, limits: Limits | None = None) -> list[Row]:
    """All cases that the limits leave time for."""
    selection = selection or Selection()
    rows = share(__name__, selection.asked(), limits or Limits(), selection.keep)
    print("\n".join(models_table(rows)), flush=True)
    return rows

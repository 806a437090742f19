"""Threads that compile, call and reset at once, and functions compiled and dropped by the thousand.

An amount of work, not of time: a busy machine takes longer. FRAMESMITH_LONG=1 does fifty times as much.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
from integration_tests.harness.sweeps import LONG

STEPS = 1_500 if LONG else 30
CYCLES = 100_000 if LONG else 2_000
SIZES = (2, 3, 5)
GRAPHS: Counter[str] = Counter()
TABLE = {"scale": torch.full((4,), 3.0)}


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu() * self.factor
        return x


def plain(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) * TABLE["scale"]


def breaking(x: torch.Tensor) -> torch.Tensor:
    y = x * TABLE["scale"]
    print(end="")  # breaks the graph
    return y + x.shape[0]


def branching(x: torch.Tensor) -> torch.Tensor:
    return x.sum() if x.shape[0] > 2 else TABLE["scale"] * x


def make(backend: Callable[..., Any]) -> list[tuple[Callable[..., Any], Callable[..., Any]]]:
    """(compiled, eager) pairs: shared functions, and a module made now."""
    targets = [plain, breaking, branching, Layered()]
    return [(framesmith.compile(target, backend=backend), target) for target in targets]


class Worker(threading.Thread):
    """Calls at random, compiles something new now and then, and resets; `wrong` and `error` describe failures."""

    def __init__(self, seed: int, shared: list[tuple[Callable[..., Any], Callable[..., Any]]]) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.shared = shared
        self.own = make(run_as_it_is)
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with torch.no_grad():
                for _ in range(STEPS):
                    self.step()
        except BaseException as error:
            self.error = error

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.05:
            self.own = make(run_as_it_is)
            self.done["renewal"] += 1
        elif chance < 0.07:
            framesmith.reset()
            self.done["reset"] += 1
        for _ in range(10):
            self.call(*self.random.choice(self.random.choice((self.shared, self.own))))

    def call(self, compiled: Callable[..., Any], eager: Callable[..., Any]) -> None:
        x = torch.full((self.random.choice(SIZES), 4), self.random.random())
        self.done["call"] += 1
        if not torch.equal(compiled(x), eager(x)):
            self.wrong.append(getattr(eager, "__name__", type(eager).__name__))


def run_as_it_is(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend that costs no time: what is tried is all that lies around the graph."""
    GRAPHS["made"] += 1
    return gm.forward


def run_together(workers: Sequence[threading.Thread]) -> None:
    """Start them all and wait for them, while threads are switched often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.filterwarnings("error::framesmith.reports.failures.FramesmithWarning")
def test_eight_threads_compile_call_and_reset() -> None:
    framesmith.reset()
    shared = make(run_as_it_is)
    workers = [Worker(seed, shared) for seed in range(8)]
    try:
        run_together(workers)
    finally:
        framesmith.reset()
    done = sum((worker.done for worker in workers), Counter())
    assert [worker.error for worker in workers if worker.error is not None] == []
    assert Counter(name for worker in workers for name in worker.wrong) == {}
    assert done["call"] == 8 * STEPS * 10
    assert done["renewal"] > 1 and done["reset"] > 1 and GRAPHS["made"] > 50, (done, GRAPHS)


def resident() -> int:
    """Bytes of memory this process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cycle(number: int) -> None:
    """Compile a function nobody has seen, with an input that its guards extract, call it twice, and let it go."""
    code = plain.__code__.replace(co_firstlineno=number + 1)
    table = {"scale": torch.full((4,), float(number))}
    function = types.FunctionType(code, {"TABLE": table}, "plain")
    compiled = framesmith.compile(function, backend=run_as_it_is)
    x = torch.ones(2, 4)
    for _ in range(2):
        assert float(compiled(x)[0, 0]) == 2.0 * number


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_compiling_and_dropping_leaves_nothing() -> None:
    framesmith.reset()
    for number in range(500):
        cycle(number)
    gc.collect()
    before = resident()
    for number in range(CYCLES):
        cycle(number)
    gc.collect()
    grown = resident() - before
    framesmith.reset()
    assert grown < 5 << 20, f"{grown / (1 << 20):.1f} MiB in {CYCLES} cycles"


def test_threads_that_call_at_once_do_not_compile_one_each() -> None:
    """Many functions, each called by all threads at the same moment: equal entries do not reach the recompile limit.

    There may be one too many where a thread asks just when another has compiled, and its entry is not yet in place.
    """
    framesmith.reset()
    threads, functions = 8, 12
    together = threading.Barrier(threads)
    compiled = []
    for number in range(functions):
        code = branching.__code__.replace(co_firstlineno=number + 1, co_name=f"branching_{number}")
        function = types.FunctionType(code, {"TABLE": TABLE}, f"branching_{number}")
        compiled.append(
            framesmith.compile(function, backend=run_as_it_is, strict=True, dynamic=False, recompile_limit=5)
        )
    wrong: list[object] = []

    def work() -> None:
        for function in compiled:
            together.wait()
            for rows in (2, 3, 2, 3):
                x = torch.ones(rows, 4)
                try:
                    if not torch.equal(function(x), branching(x)):
                        wrong.append("another result")
                except Exception as error:
                    wrong.append(error)

    run_together([threading.Thread(target=work) for _ in range(threads)])
    assert wrong == []
    counted = framesmith.stats()
    assert 2 * functions <= counted["frames_compiled"] <= 3 * functions, counted

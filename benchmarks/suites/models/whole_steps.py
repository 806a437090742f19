"""Training steps compiled whole: graphs and breaks beside torch.compile's, first steps, later ones, peak memory."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import framesmith
from benchmarks.harness.candidates import available, fresh_inductor_cache, wrap
from benchmarks.harness.graph_counts import breaks_of, counted, forget, print_graphs
from benchmarks.harness.measuring import measure_isolated
from benchmarks.harness.registry import matching
from benchmarks.harness.summary import print_summary
from benchmarks.harness.tensors_made import PEAK
from benchmarks.harness.timing import Row, Step, in_fresh_process, print_rows, ratios
from benchmarks.models.selection import Selection
from benchmarks.models.training_programs import PROGRAMS, new_program

ROUNDS = 21
#: Processes of each candidate whose first steps are timed.
PROCESSES = 3
FIRST = 3
NEAR = {"rtol": 1e-3, "atol": 2e-4}
NEAR_BFLOAT16 = {"rtol": 5e-2, "atol": 2e-2}


@dataclass(frozen=True)
class Case:
    """A program, by its name."""

    name: str
    kind: str = "step"


CASES = tuple(Case(name) for name in PROGRAMS)
#: Steps in the table of graphs.
USES = {"3 steps": 3, "20 steps": 20}


def graphs_of(candidate: str, name: str, steps: int) -> str:
    """Return a candidate's graphs and breaks, and a star where results differ from eager mode's."""
    forget()
    captured: list[Any] = []
    made = new_program(name)
    call: Any = framesmith.compile(made.step)
    if candidate == "torch.compile":
        call, captured = counted(candidate, made.step)
    found = [*(call(*made.batch(at)) for at in range(steps)), *made.state(), torch.rand(2)]
    graphs = len(captured) or int(framesmith.stats()["graphs"])
    made = new_program(name)
    expected = [*(made.step(*made.batch(at)) for at in range(steps)), *made.state(), torch.rand(2)]
    try:
        torch.testing.assert_close(found, expected, **(NEAR_BFLOAT16 if "amp" in name else NEAR))
    except AssertionError:
        return f"{graphs}, {breaks_of(candidate)} *"
    return f"{graphs}, {breaks_of(candidate)}"


def prepare(name: str, candidate: str) -> Step:
    """A candidate's step of a program, called so often that it is compiled."""
    warnings.simplefilter("ignore")
    torch.set_flush_denormal(True)  # thousands of steps on one batch end in gradients that are almost 0
    made = new_program(name)
    call = wrap(candidate, made.step)
    for at in range(FIRST):
        call(*made.batch(at))
    return partial(call, *made.batch(FIRST))


def first_steps(name: str, candidate: str) -> float:
    """Return the seconds of a candidate's first steps, compiling included."""
    warnings.simplefilter("ignore")
    if candidate == "torch.compile":
        fresh_inductor_cache()
    made = new_program(name)
    batches = [made.batch(at) for at in range(FIRST)]
    begun = time.perf_counter()
    call = wrap(candidate, made.step)
    for batch in batches:
        call(*batch)
    return time.perf_counter() - begun


def first_steps_of(name: str, names: list[str], rounds: int) -> list[Row]:
    """Rows of the first steps, each in a process of its own."""
    times: dict[str, list[float]] = {candidate: [] for candidate in names}
    for _ in range(rounds):
        for candidate in names:
            code = f"from {__name__} import first_steps; print(first_steps({name!r}, {candidate!r}))"
            times[candidate].append(float(in_fresh_process(code)))
    title = f"{name}, first {FIRST} steps"
    return [
        Row(title, candidate, sorted(mine)[len(mine) // 2], ratios(mine, times, candidate), rounds)
        for candidate, mine in times.items()
    ]


def run(selection: Selection | None = None) -> list[Row]:
    """Print the table of graphs; return the times of the first steps and of later ones, the latter with peak bytes."""
    selection = selection or Selection()
    cases = matching(CASES, selection.only, "program")
    names = selection.among(available())
    print_graphs(__name__, [one.name for one in cases], USES)
    first: list[Row] = []
    steady: list[Row] = []
    for case in cases:
        found = first_steps_of(case.name, names, selection.rounds_or(PROCESSES))
        print_rows(found)
        selection.keep(found)
        first += found
        rounds = selection.rounds_or(ROUNDS)
        found = measure_isolated(case.name, names, prepare, case.name, rounds=rounds, figure=PEAK)
        selection.keep(found)
        steady += found
    print_summary(first)
    print_summary(steady)
    return first + steady

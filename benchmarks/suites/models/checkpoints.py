"""Training steps of models with activation checkpoints: seconds, and the most bytes that a step's own tensors hold.

Candidates run in processes of their own, interleaved within a round; eager mode recomputes by torch's own checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch

from benchmarks.harness.candidates import available
from benchmarks.harness.isolated import IsolatedCandidate
from benchmarks.harness.measuring import ROUNDS
from benchmarks.harness.registry import matching
from benchmarks.harness.timing import Row, interleaved, print_rows
from benchmarks.models.checkpointed import CASES, Case, make_step
from benchmarks.models.selection import Selection

#: The figure of a row besides its time, and seconds that a candidate is timed for in a round.
PEAK, TARGET = "peak bytes", 0.3


def prepare(name: str, candidate: str) -> Callable[[], torch.Tensor]:
    """A candidate's step, called once so that it is compiled."""
    (case,) = matching(CASES, name, "model")
    step = make_step(case, candidate)
    step()
    return step


def measure(case: Case, names: Iterable[str], rounds: int) -> list[Row]:
    """Rows of a case; a candidate that cannot run it is reported with its reason."""
    made = {name: IsolatedCandidate(prepare, case.name, name) for name in names}
    title, refused = f"{case.name}, whole step with checkpoints", []
    for name in list(made):
        try:
            made[name].ready()
        except RuntimeError as error:
            del made[name]
            refused.append(Row(title, name, float("nan"), {}, 0, str(error)))
    counts = {name: one.iterations(TARGET) for name, one in made.items()}
    found = interleaved(title, {name: partial(one.seconds, counts[name]) for name, one in made.items()}, rounds)
    for row in found:
        row.figures[PEAK] = made[row.candidate].peak_bytes()
    for process in made.values():
        process.close()
    print_rows(found + refused)
    print_peaks(found)
    return found + refused


def print_peaks(rows: list[Row]) -> None:
    """Print the peak of each candidate, and over eager mode's where that ran."""
    eager = next((row.figures[PEAK] for row in rows if row.candidate == "eager"), 0)
    for row in rows:
        peak = row.figures[PEAK]
        over = f" ({peak / eager:.3f} of eager's)" if eager else ""
        print(f"    {row.candidate:<14} peak {peak / 2**20:8.2f} MiB{over}", flush=True)


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for."""
    selection = selection or Selection()
    rows: list[Row] = []
    for case in matching(CASES, selection.only, "model"):
        found = measure(case, selection.among(available()), selection.rounds_or(ROUNDS))
        selection.keep(found)
        rows += found
    return rows

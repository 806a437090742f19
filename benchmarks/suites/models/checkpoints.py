"""Training steps of models with activation checkpoints: seconds, and the most bytes that a step's own tensors hold.

Candidates run in processes of their own, interleaved within a round; eager mode recomputes by torch's own checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.harness.candidates import available
from benchmarks.harness.measuring import ROUNDS, measure_isolated
from benchmarks.harness.registry import matching
from benchmarks.harness.tensors_made import PEAK
from benchmarks.harness.timing import Row
from benchmarks.models.checkpointed import CASES, make_step
from benchmarks.models.selection import Selection

#: Seconds that a candidate is timed for in a round.
TARGET = 0.3


def prepare(name: str, candidate: str) -> Callable[[], torch.Tensor]:
    """A candidate's step, called once so that it is compiled."""
    (case,) = matching(CASES, name, "model")
    step = make_step(case, candidate)
    step()
    return step


def print_peaks(rows: list[Row]) -> None:
    """Print the peak of each candidate, and over eager mode's where that ran."""
    eager = next((row.figures[PEAK] for row in rows if row.candidate == "eager" and row.figures), 0)
    for row in rows:
        if not row.figures:  # it could not run
            continue
        peak = row.figures[PEAK]
        over = f" ({peak / eager:.3f} of eager's)" if eager else ""
        print(f"    {row.candidate:<14} peak {peak / 2**20:8.2f} MiB{over}", flush=True)


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for."""
    selection = selection or Selection()
    rows: list[Row] = []
    for case in matching(CASES, selection.only, "model"):
        title, rounds = f"{case.name}, whole step with checkpoints", selection.rounds_or(ROUNDS)
        names = selection.among(available())
        found = measure_isolated(title, names, prepare, case.name, rounds=rounds, target=TARGET, figure=PEAK)
        print_peaks(found)
        selection.keep(found)
        rows += found
    return rows

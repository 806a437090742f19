"""One case for all its candidates: compiled again, timed, counted and printed. The suites with a registry share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

import framesmith
from benchmarks.harness.candidates import NAMES
from benchmarks.harness.isolated import IsolatedCandidate
from benchmarks.harness.operators_called import FIGURE, operators_called
from benchmarks.harness.timing import Row, Step, compare, interleaved, print_rows

#: Rounds of each candidate, by default.
ROUNDS = 11


def measure(
    case: str, names: Iterable[str], prepare: Callable[[str], Step], *, rounds: int, target: float = 0.05
) -> list[Row]:
    """Rows of a case. `prepare` gives a candidate's step; what it raises is the reason in the candidate's row."""
    torch.compiler.reset()  # code is compiled again in each case, and its compilations are counted
    framesmith.reset()
    steps: dict[str, Step] = {}
    refused: list[Row] = []
    for name in names:
        try:
            steps[name] = prepare(name)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            refused.append(Row(case, name, float("nan"), {}, 0, reason))
    found = compare(case, steps, rounds=rounds, target=target) if steps else []
    for row in found:
        if row.candidate in NAMES:  # the others do not call torch's operators
            row.figures[FIGURE] = operators_called(steps[row.candidate])
    print_rows(found + refused)
    print_operators(found)
    return found + refused


def measure_isolated(
    case: str,
    names: Iterable[str],
    prepare: Callable[..., Step],
    *given: Any,
    rounds: int,
    target: float = 0.05,
    figure: str = FIGURE,
) -> list[Row]:
    """Rows of a case whose candidates have processes of their own. `prepare(*given, name)` gives a candidate's step.

    `prepare` is a function of a module; what it raises is the reason in the candidate's row.
    """
    made = {name: IsolatedCandidate(prepare, *given, name) for name in names}
    refused: list[Row] = []
    for name in list(made):
        try:
            made[name].ready()
        except RuntimeError as error:
            del made[name]
            refused.append(Row(case, name, float("nan"), {}, 0, str(error)))
    counts = {name: one.iterations(target) for name, one in made.items()}
    timers = {name: partial(one.seconds, counts[name]) for name, one in made.items()}
    found = interleaved(case, timers, rounds) if timers else []
    for row in found:
        if row.candidate in NAMES:  # the others do not call torch's operators
            row.figures[figure] = made[row.candidate].figure(figure)
    for process in made.values():
        process.close()
    print_rows(found + refused)
    return found + refused


def print_operators(rows: Iterable[Row]) -> None:
    """Print the operators that each candidate's step calls."""
    calls = "  ".join(f"{row.figures[FIGURE]} {row.candidate}" for row in rows if FIGURE in row.figures)
    print(f"    {FIGURE}: {calls}", flush=True)

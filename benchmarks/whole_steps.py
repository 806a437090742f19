"""Training steps with `backward()` inside: the first three and the steady state, whole and as parts compiled apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import framesmith
from benchmarks.harness import Row, print_rows
from benchmarks.step_cases import BATCH, CASES, new_step

FIRST = 3
#: Steps in a measurement of the steady state, and measurements of which the median counts.
STEPS, TIMES = 50, 7


def compiled(how: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What is done with each function of a step."""
    return (lambda function: function) if how == "eager" else framesmith.compile


def measured(name: str, how: str) -> tuple[float, float]:
    """Seconds of the first three steps, and of one in the steady state."""
    framesmith.reset()
    step, _ = new_step(name, "apart" if how == "apart" else "whole", compiled(how))
    x = torch.rand(BATCH, requires_grad=name == "gradient penalty")
    begun = time.perf_counter()
    for _ in range(FIRST):
        step(x)
    first = time.perf_counter() - begun
    for _ in range(FIRST):
        step(x)
    return first, statistics.median(_one(step, x) for _ in range(TIMES))


def _one(step: Callable[..., Any], x: torch.Tensor) -> float:
    begun = time.perf_counter()
    for _ in range(STEPS):
        step(x)
    return (time.perf_counter() - begun) / STEPS


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = []
    for name in CASES:
        found = {how: measured(name, how) for how in ("eager", "apart", "whole")}
        for what, at in (("first three steps", 0), ("a step", 1)):
            seconds = {how: times[at] for how, times in found.items()}
            rows += [
                Row(f"{name}, {what}", how, took, {other: took / seconds[other] for other in seconds}, TIMES)
                for how, took in seconds.items()
            ]
        print_rows(rows[-2 * len(found) :])
    return rows

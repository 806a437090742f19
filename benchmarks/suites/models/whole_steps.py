"""Training steps with `backward()` inside: the first three and the steady state, whole and as separate parts."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

import framesmith
from benchmarks.harness.timing import Row, interleaved, print_rows, ratios, time_steps
from benchmarks.models.step_cases import BATCH, CASES, new_step

FIRST = 3
#: Steps in a measurement of the steady state, and rounds of such measurements.
STEPS, ROUNDS = 20, 60
HOW = ("eager", "separate", "whole")


def compiled(how: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the treatment of each function of a step."""
    return (lambda function: function) if how == "eager" else framesmith.compile


def first_steps(name: str, how: str) -> tuple[Callable[[], object], float]:
    """A step whose first calls are over, and the seconds that the first three took."""
    framesmith.reset()
    step, _ = new_step(name, "separate" if how == "separate" else "whole", compiled(how))
    x = torch.rand(BATCH, requires_grad=name == "gradient penalty")
    begun = time.perf_counter()
    for _ in range(FIRST):
        step(x)
    return functools.partial(step, x), time.perf_counter() - begun


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = []
    for name in CASES:
        begun = {how: first_steps(name, how) for how in HOW}
        seconds = {how: [took] for how, (_, took) in begun.items()}
        found = [
            Row(f"{name}, first three steps", how, took, ratios(seconds[how], seconds, how), 1)
            for how, [took] in seconds.items()
        ]
        for step, _ in begun.values():  # which the other ones' reset may have made forget what was compiled
            time_steps(step, FIRST)
        timers = {how: functools.partial(time_steps, step, STEPS) for how, (step, _) in begun.items()}
        found += interleaved(f"{name}, a step", timers, ROUNDS)
        print_rows(found)
        rows += found
    return rows

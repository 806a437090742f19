"""Steps of training loops, compiled whole: equal to eager mode over several steps, and one graph once state exists."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import framesmith
from benchmarks.models.training_programs import PROGRAMS, new_program

STEPS = 4
NEAR = {"rtol": 1e-3, "atol": 2e-4}
NEAR_BFLOAT16 = {"rtol": 5e-2, "atol": 2e-2}


def outcomes(name: str, compiled: bool) -> list[Any]:
    """Losses of some steps, then parameters, gradients, buffers and optimizers' states, and a random number."""
    made = new_program(name)
    step = framesmith.compile(made.step) if compiled else made.step
    return [*(step(*made.batch(at)) for at in range(STEPS)), *made.state(), torch.rand(1)]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_are_eagers(name: str) -> None:
    framesmith.reset()
    near = NEAR_BFLOAT16 if name == "amp_with_scaler" else NEAR
    torch.testing.assert_close(outcomes(name, True), outcomes(name, False), **near)
    counts = framesmith.stats()
    # A scaled optimizer makes its state at the first step, if that is not left out: a branch on data.
    assert counts["breaks"] <= (name == "amp_with_scaler")
    assert counts["frames_failed"] == counts["recompile_limits"] == 0

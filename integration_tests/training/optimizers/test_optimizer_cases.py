"""Configurations of torch's optimizers over ten steps, and ten more with the state loaded, in three uses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import framesmith
from benchmarks.models.optimizer_cases import CONFIGURATIONS, USES, trained

#: A variance is the difference of two means: eager mode's steps are as far from those in float64.
CANCELLING = {"RMSprop centered"}
#: Configurations whose step is no single graph.
IN_PIECES = {"LBFGS", "SparseAdam"}


def comparable(name: str, found: list[Any]) -> list[Any]:
    """The losses, parameters and states; of LBFGS, which divides differences of gradients, states without tensors.

    Its direction is known to two digits, in eager mode as well: that is how far it is from one in float64.
    """
    if name != "LBFGS":
        return found
    counts = ("func_evals", "n_iter")
    return [
        [(parameter, [state[key] for key in counts if key in state]) for parameter, state in one]
        if isinstance(one, list)
        else one
        for one in found
    ]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_ten_steps_are_eagers(name: str, use: str) -> None:
    """In at most two graphs: one that makes the state, and one of every later step, also of a loaded state."""
    framesmith.reset()
    expected = trained(name, use, lambda function: function)
    found = trained(name, use, lambda function: framesmith.compile(function, strict=name not in IN_PIECES))
    near = {"rtol": 1e-3, "atol": 1e-4} if name in CANCELLING else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(comparable(name, found), comparable(name, expected), **near)
    stats = framesmith.stats()
    assert stats["frames_failed"] == 0
    if name not in IN_PIECES:  # a new SGD optimizer checks its tensors once, and its state may be loaded by then
        assert (stats["graphs"] <= 2 + (name == "SGD fused"), stats["breaks"]) == (True, 0), stats

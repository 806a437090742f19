"""Random programs with bodies in them against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from integration_tests.control_flow.random_bodies import Program, difference

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.sampled(15)
@pytest.mark.parametrize("seed", range(400))
def test_equal_to_eager_mode(seed: int) -> None:
    assert difference(seed) is None


def test_programs_repeat_by_seed() -> None:
    assert Program(3).text == Program(3).text != Program(4).text


def test_a_wrong_compiler_is_caught() -> None:
    """One without the gradients of a second argument, and one that draws a random number more."""

    def detaching(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return lambda x, y: function(x, y.detach())

    def drawing(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return lambda x, y: (torch.rand(1), function(x, y))[1]

    for wrong in (detaching, drawing):
        assert any(difference(seed, wrong) is not None for seed in range(1, 12))

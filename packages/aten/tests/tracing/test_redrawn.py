"""Masks drawn a second time, from the state of the generator before the first draw."""

from __future__ import annotations

import pytest
import torch

from framesmith_aten.operators import is_random
from framesmith_aten.tracing.redrawn import generator_state, redrawn_mask, state_bytes


@pytest.mark.parametrize("shape", [(), (3,), (17, 5), (128, 700)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_mask_of_a_draw(shape, dtype):
    torch.manual_seed(3)
    torch.rand(5)
    state = generator_state()()
    drawn = torch.empty(shape, dtype=dtype).bernoulli_(0.7)
    after = torch.get_rng_state()
    for _ in range(2):
        assert torch.equal(redrawn_mask()(state, shape, 0.7), drawn != 0)
    assert torch.equal(torch.get_rng_state(), after)


def test_the_state_keeps_its_place_among_draws():
    assert is_random(generator_state()) and not is_random(redrawn_mask())
    assert torch.equal(generator_state()(), torch.get_rng_state()) and generator_state()().numel() == state_bytes()
    fake = redrawn_mask()(torch.empty(8, device="meta"), (2, 3), 0.5)
    assert (fake.shape, fake.dtype, fake.device.type) == ((2, 3), torch.bool, "meta")

"""How real kernels lay results out, asked without a trace of the asking."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith_aten.recording import OperatorLog


@pytest.mark.parametrize("stride", [(1, 1), (1, 2), (2, 1), (1, 3)])
@pytest.mark.parametrize("function", [lambda x: x * 1, lambda x: x.exp(), lambda x: F.rrelu(x, training=True)])
def test_interleaved_memory(stride: tuple[int, int], function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(20).as_strided((2, 4), stride)
    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    with mode, OperatorLog():
        found = function(fake)
    assert found.stride() == function(x).stride()


def test_asking_draws_no_numbers() -> None:
    x = torch.randn(4, 6).t()
    state = torch.get_rng_state()
    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    with mode, OperatorLog():
        F.rrelu(fake, training=True)
    assert torch.equal(torch.get_rng_state(), state)

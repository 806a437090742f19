"""Random programs through the cpu backend: values, dtypes and strides as in eager."""

from __future__ import annotations

import pytest
import torch
from random_programs import random_program
from tracing import trace

from framesmith_backends import CpuBackend


@pytest.mark.parametrize("first", range(0, 60, 6))
def test_random_programs_equal_eager(first: int) -> None:
    for seed in range(first, first + 6):
        check(seed)


def check(seed: int) -> None:
    function, inputs = random_program(seed)
    gm = trace(function, inputs)
    wanted = gm(*inputs)
    found = CpuBackend().compile(gm, inputs)(list(inputs))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype, seed
        # The stride of a dimension of size 1 is any number: eager and its fakes differ there themselves.
        assert one.shape == other.shape, seed
        for size, a, b in zip(one.shape, one.stride(), other.stride(), strict=True):
            assert size == 1 or a == b, seed
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda m: f"seed {seed}: {m}")

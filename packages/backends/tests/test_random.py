"""Random programs through the cpu backend: values, dtypes and strides as in eager."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import by_eager, takes, trace_symbolic
from sample_programs.random_graphs import random_inputs, random_program

from framesmith_backends import CpuBackend


@pytest.mark.sampled(5)
@pytest.mark.parametrize("first", range(0, 60, 6))
def test_random_programs_equal_eager(first: int) -> None:
    for seed in range(first, first + 6):
        check(seed)


def check(seed: int) -> None:
    function, inputs = random_program(seed)
    gm = trace(function, inputs)
    compare(CpuBackend().compile(gm, inputs)(list(inputs)), gm(*inputs), seed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(0, 40, 5))
def test_random_programs_of_symbolic_sizes_equal_eager(first: int) -> None:
    served = 0
    for seed in range(first, first + 5):
        function, _ = random_program(seed)
        inputs = random_inputs(seed, (3, 4, 6))
        gm = trace_symbolic(function, inputs)
        call = CpuBackend().compile(gm, inputs)
        for sizes in ((3, 4, 6), (2, 9, 5), (7, 3, 16), (5, 8, 33), (16, 6, 64), (12, 2, 7), (6, 17, 2)):
            values = random_inputs(seed, sizes)
            if takes(gm, values):
                served += 1
                compare(call(list(values)), by_eager(gm, values), (seed, sizes))
    assert served >= 10


def compare(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], seed: object) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype, seed
        # The stride of a dimension of size 1 is any number: eager and its fakes differ there themselves.
        assert one.shape == other.shape, seed
        for size, a, b in zip(one.shape, one.stride(), other.stride(), strict=True):
            assert size == 1 or a == b, seed
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda m: f"seed {seed}: {m}")

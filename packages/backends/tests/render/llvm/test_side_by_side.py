"""Vectors side by side: elements of several tensors by turns written as whole ones, and chains in several at once."""

from __future__ import annotations

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("size", [1, 3, 64, 100])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stacks_of_elements(dtype: torch.dtype, count: int, size: int) -> None:
    inputs = [(torch.randn(7, size) * 50).to(dtype) for _ in range(count)]
    gm = trace(lambda *xs: torch.stack([x | x if dtype == torch.bool else x * 3 for x in xs], -1), inputs)
    found = CpuBackend().compile(gm, inputs)(list(inputs))[0]
    assert torch.equal(found, torch.stack([x if dtype == torch.bool else x * 3 for x in inputs], -1))


def test_whole_blocks_are_not_scattered() -> None:
    inputs = [torch.randn(32, 64) for _ in range(4)]
    for function in (lambda *xs: torch.stack(xs, -1) * 2, lambda *xs: torch.stack(xs[:2], -1) * 2):
        llvm = CpuBackend().explain(trace(function, inputs)).llvm
        assert "scatter" not in llvm and "shufflevector" in llvm
    assert "scatter" in CpuBackend().explain(trace(lambda *xs: torch.stack(xs[:3], -1) * 2, inputs)).llvm


@pytest.mark.parametrize("size", [5, 64, 127, 4096, 5000])
def test_chains_of_roundings(size: int) -> None:
    """Eight vectors at once, each number rounded as eager rounds it, also those that are none, or infinite."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        return ((((0.1 * x + 0.2) * x - 0.3) * x + 0.4) * x - 0.5) * x + 0.6

    x = torch.randn(size).bfloat16() * 30
    x[:5] = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, 1e-39])
    found = CpuBackend().compile(trace(chain, [x]), [x])([x])[0]
    torch.testing.assert_close(found, chain(x), rtol=0, atol=0, equal_nan=True)

"""Elements of several tensors by turns are written as whole vectors."""

from __future__ import annotations

import pytest
import torch
from tracing import trace

from framesmith_backends import CpuBackend

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool)


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

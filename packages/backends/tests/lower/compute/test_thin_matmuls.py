"""Batched matmuls without depth, or by a short vector, in kernels."""

from __future__ import annotations

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.lower.compute.thin_matmuls import LONGEST_VECTOR

CPU = CpuBackend()
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "shape", [(3, 20, 1, 7), (3, 20, 16, 1), (3, 1, 16, 9), (1, 1, 1, 5), (2, 6, LONGEST_VECTOR, 1)], ids=str
)
def test_they_are_kernels(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    batch, rows, depth, columns = shape
    inputs = [torch.randn(batch, rows, depth).to(dtype), torch.randn(batch, depth, columns).to(dtype)]
    gm = trace(torch.bmm, inputs)
    assert not CPU.explain(gm).lowering.notes
    (found,) = CPU.compile(gm, inputs)(list(inputs))
    wanted = torch.bmm(*(one.double() for one in inputs)).to(dtype)
    assert found.stride() == torch.bmm(*inputs).stride()
    torch.testing.assert_close(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * depth)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3, 20, 16, 4), torch.float32), ((3, 20, LONGEST_VECTOR + 1, 1), torch.float32), ((3, 20, 1, 4), torch.int64)],
    ids=str,
)
def test_others_stay_calls(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    batch, rows, depth, columns = shape
    gm = trace(torch.bmm, [torch.ones(batch, rows, depth).to(dtype), torch.ones(batch, depth, columns).to(dtype)])
    assert any("batch of matmuls" in note for note in CPU.explain(gm).lowering.notes.values())

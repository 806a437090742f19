"""Elements near each other, each read once or by several lanes, are read as whole vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace

from framesmith_backends import CpuBackend

Program = Callable[[torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Program] = {
    "each twice": lambda x: x.unsqueeze(-1).expand(*x.shape, 2).reshape(*x.shape[:-1], -1) * 2,
    "each four times": lambda x: x.unsqueeze(-1).expand(*x.shape, 4).reshape(*x.shape[:-1], -1) * 2,
    "each in every lane": lambda x: x.unsqueeze(-1).expand(*x.shape, 64).reshape(*x.shape[:-1], -1) * 2,
    "every second": lambda x: x[..., ::2] * x[..., 1::2],
    "backwards": lambda x: x.flip(-1) + 1,
    "two by turns": lambda x: x.reshape(*x.shape[:-1], -1, 2).flip(-1).flatten(-2) + 1,
    "each twice, padded": lambda x: F.pad(x.unsqueeze(-1).expand(*x.shape, 2).reshape(*x.shape[:-1], -1), (3, 5)) + 1,
    "masked by data": lambda x: torch.where(
        x.repeat(1, 4) > 0, x.unsqueeze(-1).expand(*x.shape, 4).reshape(*x.shape[:-1], -1), 7
    ),
}


@pytest.mark.sampled(28)
@pytest.mark.parametrize("size", [2, 4, 30, 64, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name: str, dtype: torch.dtype, size: int) -> None:
    x = (torch.randn(5, size) * 50).to(dtype)
    gm = trace(PROGRAMS[name], [x])
    assert torch.equal(CpuBackend().compile(gm, [x])([x])[0], PROGRAMS[name](x))


@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_vectors(name: str) -> None:
    llvm = CpuBackend().explain(trace(PROGRAMS[name], [torch.randn(5, 64)])).llvm
    assert "gather" not in llvm


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 4), (1, 16, 20), (3, 5, 64), (2, 1, 7)])
@pytest.mark.parametrize("factor", [2, 4])
def test_upsampling(factor: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Also of infinite pixels, which torch multiplies by 0 at the border."""
    for mode in ("bilinear", "nearest"):

        def program(x: torch.Tensor, mode: str = mode) -> torch.Tensor:
            return F.interpolate(x, scale_factor=factor, mode=mode)

        for index in (None, (0, 0), (0, 1), (1, 0), (1, 1), (-1, -1)):
            x = torch.randn(1, *shape).to(dtype)
            if index is not None:
                x[0, 0, min(index[0], shape[1] - 1), min(index[1], shape[2] - 1)] = float("inf")
            gm = trace(program, [x])
            found = CpuBackend().compile(gm, [x])([x])[0]
            torch.testing.assert_close(found, program(x), equal_nan=True)

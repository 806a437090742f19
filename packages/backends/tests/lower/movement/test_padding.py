"""Padding by the nearest element and by reflection, and rolls: elements read at other indices, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from graphs.tracing_symbolic import by_eager, takes, trace_symbolic

from framesmith_backends import CpuBackend

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool)
#: Shapes, and what is added to their last dimensions.
PADDED: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 40), (3, 2)), ((3, 40), (0, 5)), ((2, 3, 20, 37), (1, 2, 3, 4)), ((2, 3, 20, 37), (2, 0, -1, 4)),
    ((3, 20, 37), (1, 2, 0, 0)), ((2, 2, 5, 6, 70), (1, 2, 3, 4, 2, 1)), ((2, 3, 16, 64), (2, 2, 2, 2)),
    ((2, 3, 4, 5), (4, 4, 3, 3)), ((2, 3, 2, 1), (0, 0, 1, 1)), ((0, 3, 4, 5), (1, 1, 1, 1)),
]  # fmt: skip
#: Shapes, how far they are rolled, and along which dimensions.
ROLLED: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((5, 40), (3,), (1,)), ((5, 40), (-3, 7), (1, 0)), ((5, 40), (3,), ()), ((40,), (3,), ()), ((70,), (-75,), (-1,)),
    ((4, 5, 64), (1, -1, 100), (0, 1, 2)), ((4, 5, 64), (0,), (2,)), ((4, 0, 64), (2, 3), (1, 2)),
    ((4, 5, 64), (2, 3), (2, 2)), ((1, 7), (2, 2), (0, 1)), ((7, 1), (2, 2), (0, 1)), ((1,), (2,), (0,)),
]  # fmt: skip


def check(function: Callable[..., Any], x: torch.Tensor) -> None:
    (found,), wanted = CpuBackend().compile(gm := trace(function, [x]), [x])([x]), function(x)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride(), gm.code


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 2), (1, 2), (1, 4), (5, 5), (2, 30)])
@pytest.mark.parametrize("padding", [(9, 9, 0, 1), (9, 9, 1, 0), (-1, 13, 2, 1), (13, -1, 0, 3)])
def test_reads_of_a_few_lanes(shape: tuple[int, ...], padding: tuple[int, ...], dtype: torch.dtype) -> None:
    """Lanes that are known to be outside, beside such as the row decides on: LLVM read them without a mask."""
    check(lambda x: F.pad(x, padding), (torch.arange(math.prod(shape)) + 1).view(shape).to(dtype))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["replicate", "reflect"])
@pytest.mark.parametrize("shape, padding", PADDED)
def test_padding(shape: tuple[int, ...], padding: tuple[int, ...], mode: str, dtype: torch.dtype) -> None:
    def pad(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, padding, mode=mode)

    x = (torch.randn(shape) * 20).to(dtype)
    try:
        pad(x)
    except (RuntimeError, NotImplementedError):
        pytest.skip("eager mode has none of this type")
    check(pad, x)
    if x.dim() == 4 and dtype != torch.bool:
        check(pad, x.to(memory_format=torch.channels_last))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape, shifts, dims", ROLLED)
def test_roll(shape: tuple[int, ...], shifts: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * 20).to(dtype)
    check(lambda x: torch.roll(x, shifts, dims), x)
    check(lambda x: torch.roll(x.mT if x.dim() > 1 else x, shifts, dims), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate") + 1,
        lambda x: F.pad(x, (1, 1), mode="replicate") * 2,
        lambda x: F.pad(x[None], (1, 2, 3, 0), mode="reflect") + 1,
        lambda x: torch.roll(x, (3, -5), (1, 2)) + x,
        lambda x: torch.roll(x, x.shape[1], 2) * 2,
    ],
)
def test_dynamic_shapes(function: Callable[..., Any]) -> None:
    gm = trace_symbolic(function, [torch.randn(3, 6, 33)])
    call = CpuBackend().compile(gm, [torch.randn(3, 6, 33)])
    for shape in ((2, 5, 7), (4, 9, 16), (3, 4, 64), (5, 6, 100)):
        x = torch.randn(shape)
        assert takes(gm, [x])
        assert torch.equal(call([x])[0], by_eager(gm, [x])[0])


def test_paddings_are_kernels() -> None:
    """All but those of rows much of which is read from their end."""
    plans = {
        function: CpuBackend().explain(trace(function, [torch.randn(2, 3, 8, 70)])).plan
        for function in (
            lambda x: F.pad(x, (2, 2, 2, 2), mode="replicate"),
            lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"),
            lambda x: F.pad(x.to(memory_format=torch.channels_last), (2, 2, 2, 2), mode="reflect"),
            lambda x: torch.roll(x, (1, 2), (2, 3)),
        )
    }
    assert all(len(plan.kernels) >= 1 and "aten." not in plan.text() for plan in plans.values())
    plan = (
        CpuBackend().explain(trace(lambda x: F.pad(x, (20, 2, 2, 2), mode="reflect"), [torch.randn(2, 3, 8, 70)])).plan
    )
    assert "aten.reflection_pad2d" in plan.text()

"""Pooling and upsampling in kernels give what ATen's operators give, gradients and layouts included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.target import CPU

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def agree(function: Callable[..., Any], *inputs: torch.Tensor, lowered: bool = True) -> list[str]:
    """Compile the function, compare it with eager, and give the reasons of what runs as ATen calls."""
    gm = trace(function, inputs)
    reasons = [note for name, note in lower_graph(gm, CPU).notes.items() if "getitem" not in name]
    assert bool(reasons) != lowered, reasons
    wanted = function(*inputs)
    found = CpuBackend().compile(gm, inputs)(list(inputs))
    for mine, theirs in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
        tolerance = TOLERANCE.get(mine.dtype, 0)
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    return reasons


def images(dtype: torch.dtype = torch.float32, layout: str = "contiguous") -> torch.Tensor:
    """Two images of three channels with NaN, ties, both zeros, and windows of -inf alone."""
    x = torch.randn(2, 3, 11, 14, dtype=torch.float64)
    x[0, 0, 2, 3] = x[0, 0, 2, 4] = NAN
    x[1, 1, 4:9, 4:9] = -INF
    x[0, 1, 3:6, 3:6] = 0.5
    x[1, 0, 0, 0], x[1, 0, 0, 1] = -0.0, 0.0
    return x.to(dtype).contiguous(memory_format=FORMATS[layout])


# kernel size, stride, padding, ceil_mode
WINDOWS = (
    ((2, 2), (2, 2), (0, 0), False),
    ((3, 3), (2, 2), (1, 1), False),
    ((3, 2), (1, 2), (1, 0), True),
    ((3, 3), (3, 3), (0, 1), True),
)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_max_pool(window: Any, dtype: torch.dtype, layout: str) -> None:
    size, stride, padding, ceil = window
    x = images(dtype, layout)
    settings = (size, stride, padding, (1, 1), ceil)
    agree(lambda x: aten.max_pool2d_with_indices(x, *settings), x)
    result, indices = aten.max_pool2d_with_indices(x, *settings)
    grad = torch.randn_like(result)
    agree(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *settings, i), grad, x, indices)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(("include", "divisor"), [(True, None), (False, None), (True, 7)])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_avg_pool(window: Any, include: bool, divisor: int | None, layout: str) -> None:
    size, stride, padding, ceil = window
    x = torch.randn(2, 3, 11, 14).contiguous(memory_format=FORMATS[layout])
    settings = (size, stride, padding, ceil, include, divisor)
    agree(lambda x: aten.avg_pool2d(x, *settings), x)
    grad = torch.randn_like(aten.avg_pool2d(x, *settings))
    agree(lambda g, x: aten.avg_pool2d_backward(g, x, *settings), grad, x)


def test_pools_of_other_ranks_and_types() -> None:
    volumes = torch.randn(3, 4, 6, 7, 8)
    agree(lambda x: aten.max_pool3d_with_indices(x, [2, 3, 2], [2, 2, 1], [1, 1, 0]), volumes)
    agree(lambda x: aten.avg_pool3d(x, [2, 3, 2], [2, 2, 1], [1, 1, 0]), volumes)
    agree(lambda x: aten.max_pool2d_with_indices(x, [2, 2]), torch.randint(-9, 9, (3, 6, 7)))
    agree(lambda x: aten._adaptive_avg_pool2d(x, [3, 7]), torch.randn(2, 3, 12, 14))
    agree(lambda x: aten.max_pool2d_with_indices(x, [2, 2], [1, 1], [0, 0], [2, 3]), images())


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: aten.max_pool2d_with_indices(x, [8, 8]), "windows of 64"),
        (lambda x: aten.max_pool2d_with_indices(x, [3, 3], [1, 1], [1, 1], [2, 2]), "dilated windows with padding"),
        (lambda x: aten._adaptive_avg_pool2d(x, [5, 7]), "windows of different sizes"),
        (lambda x: aten.upsample_bilinear2d(x, [22, 28], True), "aligned corners"),
        (lambda x: aten.upsample_nearest2d(x, [12, 28]), "whole factors"),
        (lambda x: aten.upsample_bilinear2d(x, [22, 28], False, 2.5, 2.0), "scale"),
    ],
)
def test_calls_have_a_reason(function: Callable[..., Any], reason: str) -> None:
    assert any(reason in note for note in agree(function, torch.randn(2, 3, 11, 14), lowered=False))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("growth", [(1, 1), (2, 2), (3, 1), (4, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_upsampling(dtype: torch.dtype, growth: tuple[int, int], layout: str) -> None:
    x = torch.randn(2, 3, 5, 6, dtype=dtype).contiguous(memory_format=FORMATS[layout])
    size = [5 * growth[0], 6 * growth[1]]
    agree(lambda x: aten.upsample_bilinear2d(x, size, False), x)
    agree(lambda x: aten.upsample_nearest2d(x, size, float(growth[0]), float(growth[1])), x)
    agree(lambda x: aten._upsample_nearest_exact2d(x, size), x)
    grad = torch.randn(2, 3, *size, dtype=dtype).contiguous(memory_format=FORMATS[layout])
    agree(lambda g: aten.upsample_nearest2d_backward(g, size, [2, 3, 5, 6]), grad)
    few = 4 * growth[0] * growth[1] <= 16
    agree(lambda g: aten.upsample_bilinear2d_backward(g, size, [2, 3, 5, 6], False), grad, lowered=few)


def test_upsampling_of_other_ranks_and_types() -> None:
    agree(lambda x: aten.upsample_linear1d(x, [10], False), torch.randn(2, 3, 5))
    agree(lambda x: aten.upsample_nearest1d(x, [15]), torch.randn(2, 3, 5))
    agree(lambda x: aten.upsample_trilinear3d(x, [4, 10, 8], False), torch.randn(2, 3, 2, 5, 4))
    agree(lambda x: aten.upsample_nearest3d(x, [4, 10, 8]), torch.randn(2, 3, 2, 5, 4))
    agree(lambda x: aten.upsample_nearest2d(x, [10, 12]), torch.randint(0, 255, (2, 3, 5, 6), dtype=torch.uint8))

"""Means and variances against float64, where the mean is large and the variance small, or none at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The saved mean and inverse deviation; `eps` is small beside the variances here."""
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-12)[1:]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (8, 3, 32, 32), (32, 64, 28, 28), (1, 4, 256, 256)])
@pytest.mark.parametrize("mean", [0.0, 100.0, 1e4, 1e6])
def test_large_mean_and_small_variance(shape: tuple[int, ...], mean: float) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + mean
    found_mean, found_rstd = CpuBackend().compile(trace(statistics, [x]), [x])([x.clone()])
    variance, exact_mean = torch.var_mean(x.double(), (0, 2, 3), correction=0)
    torch.testing.assert_close(found_mean.double(), exact_mean, rtol=1e-7, atol=5e-8)
    torch.testing.assert_close(found_rstd.double(), variance.rsqrt(), rtol=5e-7, atol=0)


@pytest.mark.parametrize("value", [0.1, 1e6, 3.3e7])
def test_a_constant_channel_has_no_variance(value: float) -> None:
    x = torch.full((7, 2, 31, 31), value)
    mean, rstd = CpuBackend().compile(trace(statistics, [x]), [x])([x.clone()])
    torch.testing.assert_close(mean, x[0, :, 0, 0], rtol=1e-7, atol=0)
    assert rstd.isfinite().all()


def _normalized(op: Any, *settings: Any) -> Any:
    return lambda x: op(x, *settings)[0]


LAYER, GROUP = torch.ops.aten.native_layer_norm, torch.ops.aten.native_group_norm


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (_normalized(LAYER, [33], None, None, 1e-5), (5, 33)),
        (_normalized(LAYER, [3, 7], None, None, 1e-5), (5, 3, 7)),
        (_normalized(GROUP, None, None, 2, 6, 35, 3, 1e-5), (2, 6, 5, 7)),
        (lambda x: torch.var(x, 1), (5, 33)),
        (lambda x: torch.std(x, 0), (33, 5)),
        (lambda x: torch.var_mean(x, (0, 2))[0], (3, 5, 7)),
    ],
)
@pytest.mark.parametrize("value", [0.1, 3e5, 3.3e7, -1e8])
def test_rows_of_equal_numbers_do_not_vary(function: Any, shape: tuple[int, ...], value: float) -> None:
    """As in eager mode: whatever lies behind a normalisation decides by the sign of what it gives."""
    x = torch.full(shape, value)
    [found] = CpuBackend().compile(trace(lambda x: (function(x),), [x]), [x])([x.clone()])
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("mean", [0.0, 100.0, 1e4, 1e6])
def test_layer_norm_of_a_large_mean(mean: float) -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)) + mean
    normalized = _normalized(LAYER, [96], None, None, 1e-5)
    [found] = CpuBackend().compile(trace(lambda x: (normalized(x),), [x]), [x])([x.clone()])
    exact = normalized(x.double())
    error, eager = ((one.double() - exact).abs().max() for one in (found, normalized(x)))
    assert error <= 2 * eager


@pytest.mark.parametrize(("rows", "correction"), [(1, 1), (2, 2), (2, 5), (3, 1)])
def test_too_few_numbers_have_no_variance(rows: int, correction: int) -> None:
    x = torch.tensor([[1.0, float("inf"), float("nan")], [2.0, 1.0, 1.0], [4.0, 2.0, 0.0]])[:rows]
    call = lambda x: (torch.var(x, 0, correction=correction), torch.std(x, 0, correction=correction))  # noqa: E731
    for found, expected in zip(CpuBackend().compile(trace(call, [x]), [x])([x.clone()]), call(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize(
    "row", [[float("inf"), 1.0, 2.0], [1e30, 1e30, 1e30], [float("nan"), 1.0, 2.0], [3e38, 3e38, 3e38]]
)
def test_numbers_beyond_all_measure(row: list[float]) -> None:
    """The mean is what the sum says, and the variance infinite or none, but never a number by chance."""
    x = torch.tensor(row).view(3, 1, 1, 1)
    mean, rstd = CpuBackend().compile(trace(statistics, [x]), [x])([x.clone()])
    torch.testing.assert_close(mean, x.sum((0, 2, 3)) / 3, equal_nan=True)
    assert rstd.item() == 0 or rstd.isnan().all()


@pytest.mark.parametrize("other", [1e5, -3e19, 3e38])
@pytest.mark.parametrize("index", [0, 17])
def test_one_number_far_from_all_others(other: float, index: int) -> None:
    """Also where it is the first: as near to float64 as eager mode is, which adds up in float64."""
    x = torch.randn(8, 100, generator=torch.Generator().manual_seed(0))
    x[:, index] = other if other < 1e38 else torch.tensor([other, *[0.0] * 7])  # ATen's sum of all must not overflow
    call = lambda x: (torch.var(x, 1), torch.std(x, 1), torch.std(x), *torch.var_mean(x[:1], 1))  # noqa: E731
    found = CpuBackend().compile(trace(call, [x]), [x])([x.clone()])
    for value, expected in zip(found, call(x), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


def test_many_equal_large_numbers_do_not_overflow() -> None:
    x = torch.full((6, 50), 3e38)
    call = lambda x: torch.var_mean(x, 1)  # noqa: E731
    for value, expected in zip(CpuBackend().compile(trace(call, [x]), [x])([x.clone()]), call(x), strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("dim", [0, 1])
def test_squares_are_not_rounded_before_they_are_added(dim: int) -> None:
    """The second square lies between two floats, and goes to the upper one by what was there before alone."""
    x = torch.zeros(512, 512)
    x.select(dim, 3)[:] = 2.0**-13
    x.select(dim, 131)[:] = 1 + 2.0**-12
    (found,) = CpuBackend().compile(trace(lambda v: ((v * v).sum(dim),), [x]), [x])([x])
    assert torch.equal(found, x.double().square().sum(dim).float())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("others", [0, 1, 2, 40])
@pytest.mark.parametrize("before", [0, 1, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_means_of_an_infinite_number(before: int, others: int, dtype: torch.dtype) -> None:
    row = torch.tensor([1.0] * before + [float("inf")] + [2.0] * others, dtype=dtype)
    x = torch.stack([row, torch.ones_like(row)])
    for function in (lambda x: torch.std_mean(x, 1), lambda x: torch.var_mean(x.t(), 0, correction=0)):
        found = CpuBackend().compile(trace(function, [x]), [x])([x.clone()])
        torch.testing.assert_close(tuple(found), function(x), equal_nan=True)

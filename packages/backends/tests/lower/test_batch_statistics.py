"""The statistics of batch norm against float64, where the mean is large and the variance small."""

from __future__ import annotations

import pytest
import torch
from tracing import trace

from framesmith_backends import CpuBackend


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The saved mean and inverse deviation; `eps` is small beside the variances here."""
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-12)[1:]


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

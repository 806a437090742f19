"""Reductions of columns and of whole tensors, the indices of extremes, scans, and orders."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.kernel_cases.case import SINGLE, Case, Inputs, Tensor, group, normal, positive
from benchmarks.models.programs import mse

MATRIX = (2048, 1024)
FLAT = (1 << 20,)


def column_sums(x: Tensor) -> Tensor:
    return (x * 2).sum(0)


def column_means_of_gelu(x: Tensor) -> Tensor:
    return F.gelu(x).mean(0)


def column_maxima(x: Tensor) -> Tensor:
    return x.amax(0)


def middle_sums(x: Tensor) -> Tensor:
    return x.sum(1)


def row_sums(x: Tensor) -> Tensor:
    return x.sum(1)


def total(x: Tensor) -> Tensor:
    return x.sum()


def largest(x: Tensor) -> Tensor:
    return x.abs().max()


def variance(x: Tensor) -> Tensor:
    return x.var()


def row_variances(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, 1)


def column_deviations(x: Tensor) -> Tensor:
    return x.std(0)


def norm(x: Tensor) -> object:
    return torch.linalg.vector_norm(x)


def row_norms(x: Tensor) -> object:
    return x.norm(p=1, dim=1)


def log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, 1)


def prod(x: Tensor) -> Tensor:
    return x.prod(1)


def any_and_all(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x > 3).any(1), (x > -3).all(1)


def argmax_rows(x: Tensor) -> Tensor:
    return x.argmax(1)


def argmin_columns(x: Tensor) -> Tensor:
    return x.argmin(0)


def argmax_all(x: Tensor) -> Tensor:
    return x.argmax()


def max_with_indices(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = x.max(1)
    return values, indices


def cumsum(x: Tensor) -> Tensor:
    return x.cumsum(1)


def cumsum_columns(x: Tensor) -> Tensor:
    return x.cumsum(0)


def cumprod(x: Tensor) -> Tensor:
    return x.cumprod(1)


def cummax(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = x.cummax(1)
    return values, indices


def logcumsumexp(x: Tensor) -> Tensor:
    return x.logcumsumexp(1)


def doubling_scan(x: Tensor, decay: Tensor) -> Tensor:
    """h[t] = decay[t] * h[t - 1] + x[t] in log2(length) steps, each joining neighbours at twice the distance."""
    width = 1
    while width < x.shape[1]:
        x = torch.cat([x[:, :width], x[:, width:] + decay[:, width:] * x[:, :-width]], 1)
        decay = torch.cat([decay[:, :width], decay[:, width:] * decay[:, :-width]], 1)
        width *= 2
    return x


def decaying(dtype: torch.dtype) -> Inputs:
    return torch.randn(256, 1024).to(dtype), torch.rand(256, 1024).to(dtype)


def topk(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = (x * 2).topk(8, 1)
    return values, indices


def sort(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x, dim=1, stable=True)
    return values, indices


def argsort(x: Tensor) -> Tensor:
    return x.argsort(dim=1, descending=True, stable=True)


def searchsorted(borders: Tensor, x: Tensor) -> Tensor:
    return torch.searchsorted(borders, x)


def bucketize(borders: Tensor, x: Tensor) -> Tensor:
    return torch.bucketize(x * 2, borders, right=True)


def borders_and_values(dtype: torch.dtype) -> Inputs:
    return torch.randn(256).sort().values.to(dtype), torch.randn(1 << 19).to(dtype)


def samples_of_rows(weights: Tensor, x: Tensor) -> Tensor:
    """Draws from each row's distribution, `x` being uniform."""
    sums = weights.cumsum(1)
    return torch.searchsorted(sums, x * sums[:, -1:], right=True)


def weights_and_uniform(dtype: torch.dtype) -> Inputs:
    return torch.rand(4096, 64).to(dtype), torch.rand(4096, 128).to(dtype)


def one_hot_counts(x: Tensor) -> Tensor:
    return F.one_hot(x, 64).sum(0)


REDUCTIONS = (
    *group(
        "columns",
        Case("column_sums", column_sums, normal(MATRIX), scale=50),
        Case("column_means_of_gelu", column_means_of_gelu, normal(MATRIX)),
        Case("column_maxima", column_maxima, normal(MATRIX)),
        Case("column_deviations", column_deviations, normal(MATRIX)),
        Case("middle_sums", middle_sums, normal((64, 128, 256)), scale=10),
        Case("one_hot_counts", one_hot_counts, lambda _: (torch.randint(0, 64, (16384,)),), ("int64",)),
    ),
    *group(
        "reductions",
        Case("row_sums", row_sums, normal(MATRIX), scale=30),
        Case("total", total, normal(FLAT), scale=1000),
        Case("mse", mse, normal(FLAT, FLAT)),
        Case("mse_backward", mse, normal(FLAT, FLAT), backward=True),
        Case("largest", largest, normal(FLAT)),
        Case("variance", variance, normal(FLAT)),
        Case("variance_backward", variance, normal(FLAT), backward=True),
        Case("row_variances", row_variances, normal(MATRIX)),
        Case("norm", norm, normal(FLAT)),
        Case("row_norms", row_norms, normal(MATRIX)),
        Case("log_sum_exp", log_sum_exp, normal(MATRIX)),
        Case("log_sum_exp_backward", log_sum_exp, normal(MATRIX), backward=True),
        Case("prod", prod, positive((8192, 64)), SINGLE),
        Case("any_and_all", any_and_all, normal(MATRIX)),
    ),
    *group(
        "extremes",
        Case("argmax_rows", argmax_rows, normal(MATRIX)),
        Case("argmin_columns", argmin_columns, normal(MATRIX)),
        Case("argmax_all", argmax_all, normal(FLAT)),
        Case("max_with_indices", max_with_indices, normal(MATRIX)),
    ),
    *group(
        "scans",
        Case("cumsum", cumsum, normal(MATRIX), scale=30),
        Case("cumsum_backward", cumsum, normal(MATRIX), backward=True, scale=30),
        Case("cumsum_columns", cumsum_columns, normal(MATRIX), scale=50),
        Case("cumprod", cumprod, positive((8192, 64)), SINGLE),
        Case("cummax", cummax, normal(MATRIX)),
        Case("logcumsumexp", logcumsumexp, normal((512, 1024))),
        Case("doubling_scan", doubling_scan, decaying),
    ),
    *group(
        "orders",
        Case("topk", topk, normal((512, 1024))),
        Case("sort", sort, normal((512, 1024))),
        Case("argsort", argsort, normal((512, 1024))),
        Case("searchsorted", searchsorted, borders_and_values),
        Case("bucketize", bucketize, borders_and_values),
        Case("samples_of_rows", samples_of_rows, weights_and_uniform, SINGLE),
    ),
)

"""Pointwise chains, and arithmetic in types that models seldom have."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.kernel_cases.case import Case, Inputs, Tensor, group, normal
from benchmarks.models.programs import pointwise

FLAT = (1 << 20,)
MATRIX = (1024, 1024)


def gelu_tanh_chain(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x + y, approximate="tanh") * y - x


def gated(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def polynomial(x: Tensor) -> Tensor:
    return ((((0.1 * x + 0.2) * x - 0.3) * x + 0.4) * x - 0.5) * x + 0.6


def masked(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > 0, x * y, y.exp()).masked_fill(y > 1, 0.0)


def clamped(x: Tensor, y: Tensor) -> Tensor:
    return torch.clamp(x * 2 - y, -1, 1) + torch.minimum(x, y).relu()


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def row_and_column(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return (x * row + column).tanh()


def outer(row: Tensor, column: Tensor) -> Tensor:
    return torch.exp(-((row - column) ** 2))


def two_results(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    scaled = x * y
    return scaled.sigmoid(), scaled.tanh()


def lerp_and_addcmul(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.addcmul(torch.lerp(x, y, 0.3), y, z, value=0.5)


def dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.1)


def float64_chain(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).exp().log1p() + x.sin()


def float64_statistics(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


def complex_mul(x: Tensor, y: Tensor) -> Tensor:
    return x * y + x


def complex_rotation(x: Tensor, angle: Tensor) -> Tensor:
    return (torch.view_as_complex(x) * torch.polar(torch.ones_like(angle), angle)).abs()


def integer_hash(x: Tensor, y: Tensor) -> Tensor:
    mixed = (x ^ (x >> 15)) * 2246822519 + y
    return (mixed ^ (mixed >> 13)) % 1000003


def integer_division(x: Tensor, y: Tensor) -> Tensor:
    return x // y + x % y


def complex_numbers(dtype: torch.dtype) -> Inputs:
    return torch.randn(FLAT, dtype=dtype), torch.randn(FLAT, dtype=dtype)


def integers(dtype: torch.dtype) -> Inputs:
    return torch.randint(-(1 << 30), 1 << 30, FLAT, dtype=dtype), torch.randint(1, 1000, FLAT, dtype=dtype)


POINTWISE = (
    *group(
        "pointwise",
        Case("gelu_sin_sigmoid", pointwise, normal(FLAT, FLAT)),
        Case("gelu_sin_sigmoid_small", pointwise, normal((8,), (8,))),
        Case("gelu_tanh_chain", gelu_tanh_chain, normal(FLAT, FLAT)),
        Case("gated", gated, normal(FLAT, FLAT)),
        Case("gated_backward", gated, normal(FLAT, FLAT), backward=True),
        Case("bias_gelu_backward", bias_gelu, normal(MATRIX, (1024,)), backward=True, scale=30),
        Case("polynomial", polynomial, normal(FLAT)),
        Case("masked", masked, normal(FLAT, FLAT)),
        Case("clamped", clamped, normal(FLAT, FLAT)),
        Case("bias_gelu", bias_gelu, normal(MATRIX, (1024,))),
        Case("row_and_column", row_and_column, normal(MATRIX, (1024,), (1024, 1))),
        Case("outer", outer, normal((1024,), (1024, 1))),
        Case("two_results", two_results, normal(FLAT, FLAT)),
        Case("lerp_and_addcmul", lerp_and_addcmul, normal(FLAT, FLAT, FLAT)),
        Case("dropout", dropout, normal(FLAT), random=True),
        Case("dropout_backward", dropout, normal(FLAT), random=True, backward=True),
    ),
    *group(
        "types",
        Case("chain", float64_chain, normal(FLAT, FLAT), ("float64",)),
        Case("standardized", float64_statistics, normal(MATRIX), ("float64",)),
        Case("complex_mul", complex_mul, complex_numbers, ("complex64",)),
        Case("rotation", complex_rotation, normal((1 << 19, 2), (1 << 19,)), ("float32",)),
        Case("hash", integer_hash, integers, ("int64",)),
        Case("division", integer_division, integers, ("int64",)),
    ),
)

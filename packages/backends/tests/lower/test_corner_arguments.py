"""Arguments that a rule can mistake: types asked for, no dimensions, signs of zero, masks, float16 overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace

from framesmith_backends import CpuBackend


def half(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float16)


BOOLS = torch.tensor([True, True, False, False])
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "sums in float16": (lambda x: x.sum(dtype=torch.float16), [torch.tensor([1e5, -1e5])]),
    "sums of integers in float16": (lambda x: x.sum(0, dtype=torch.float16), [torch.tensor([70000, -70000])]),
    "sums in bfloat16": (lambda x: x.sum(dtype=torch.bfloat16), [torch.full((1000,), 1.0038)]),
    "means in float16": (lambda x: x.mean(dtype=torch.float16), [torch.tensor([1e4, 3e4])]),
    "prod in float16": (lambda x: x.prod(dtype=torch.float16), [torch.tensor([1e5, 1e-5])]),
    "mse_loss": (lambda x: F.mse_loss(x, x * 0), [half(300, 0)]),
    "mse_loss, sum": (lambda x: F.mse_loss(x, x * 0, reduction="sum"), [half(200, 200)]),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, -x), [half(6e4, 0)]),
    "huber_loss of two types": (lambda x, y: F.huber_loss(x, y), [half(1, 5), torch.tensor([0.0, 1.0])]),
    "logits of bfloat16, targets of float32": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
        [torch.linspace(-3, 3, 64).bfloat16(), torch.linspace(0, 1, 64)],
    ),
    "softplus by nothing": (lambda x: F.softplus(x, 0.0), [torch.linspace(-3, 3, 7)]),
    "softplus by nothing, negative": (lambda x: F.softplus(x, -0.0), [torch.linspace(-3, 3, 7)]),
    "padded with -0": (lambda x: 1 / F.pad(x, (1, 1), value=-0.0), [torch.ones(3)]),
    "all along none": (lambda x: torch.all(x, dim=()), [torch.tensor([[1.0, 0.0]])]),
    "any of bytes along none": (lambda x: torch.any(x, dim=()), [torch.tensor([[2, 0]], dtype=torch.uint8)]),
    "fmax of bools": (torch.fmax, [BOOLS, BOOLS.flip(0)]),
    "fmin of bools": (torch.fmin, [BOOLS, torch.tensor([True, False, True, False])]),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str) -> None:
    function, inputs = CASES[name]
    (found,) = CpuBackend().compile(trace(function, inputs), inputs)([*inputs])
    torch.testing.assert_close(found, function(*inputs), rtol=1e-6, atol=0, equal_nan=True)


def test_batch_norms_of_float16_whose_sum_of_squares_is_beyond_it() -> None:
    x, center, spread = torch.randn(64, 3, 40, 40).half(), torch.zeros(3).half(), torch.ones(3).half()

    def function(x: torch.Tensor, center: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten._native_batch_norm_legit_functional(x, None, None, center, spread, True, 0.1, 1e-5)

    inputs = [x, center, spread]
    found = CpuBackend().compile(trace(function, inputs), inputs)([one.clone() for one in inputs])
    expected = torch.native_batch_norm(x, None, None, center, spread, True, 0.1, 1e-5)
    for ours, eager in zip(found, (*expected, center, spread), strict=True):  # eager has changed those
        torch.testing.assert_close(ours, eager, rtol=2e-3, atol=1e-5)

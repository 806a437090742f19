"""Custom functions of several results, of which some get no gradient: the engine makes zeros for these."""

from __future__ import annotations

import pytest
import torch
from harness import same_gradients


class ScaledAndSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b, a + b

    @staticmethod
    def backward(ctx, scaled, total):
        a, b = ctx.saved_tensors
        return scaled * b + total, scaled * a + total


class WithAbsent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        return a * 2, b * 3

    @staticmethod
    def backward(ctx, first, second):
        return None if first is None else first * 2, None if second is None else second * 3


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("function", [ScaledAndSum, WithAbsent])
def test_results_without_gradients(function, used):
    def make():
        a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        return [a, b], lambda: sum(function.apply(a, b)[at].sin().sum() for at in used).backward()

    same_gradients(make)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_results_without_gradients_of_changing_sizes(dtype):
    def make():
        a, sizes = torch.randn(4, requires_grad=True, dtype=dtype), iter((2, 3, 5, 6, 7))

        def step():
            rows = torch.ones(next(sizes), 4, dtype=dtype)
            ScaledAndSum.apply(a * rows, rows)[0].sum().backward()

        return [a], step

    same_gradients(make, steps=5)

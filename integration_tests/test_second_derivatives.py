"""Gradients of gradients through compiled functions: penalties, unrolled steps, checks, across breaks and modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import framesmith

pytestmark = pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")


def critic() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.LayerNorm(8), nn.Linear(8, 1))


def without_gradients_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x * 2
    return x.pow(3) * scale


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * x
    print("between", end="")
    return (y * x).exp()


def with_a_break_without_gradients(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * x
    with torch.no_grad():
        print(y.shape, end="")
        z = y * 2
    return (y * z).exp()


def of_views(x: torch.Tensor) -> torch.Tensor:
    rows = x.view(-1, 2).t()
    return rows[0].exp() * rows[1]


FUNCTIONS = [without_gradients_inside, with_a_break, with_a_break_without_gradients, of_views]


@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_functions(function: Callable[..., Any], backend: str) -> None:
    found = []
    for run in (function, framesmith.compile(function, backend=backend)):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        [grad] = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()
        found.append((grad, x.grad))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
def test_ten_steps_with_a_gradient_penalty(backend: str) -> None:
    losses = []
    for compiles in (False, True):
        net = critic()
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        score = framesmith.compile(net, backend=backend) if compiles else net
        torch.manual_seed(1)
        mine = []
        for _ in range(10):
            real, fake = torch.randn(6, 4) + 1, torch.randn(6, 4)
            between = (real * 0.3 + fake * 0.7).requires_grad_()
            [grad] = torch.autograd.grad(score(between).sum(), between, create_graph=True)
            loss = score(fake).mean() - score(real).mean() + 10 * (grad.norm(dim=1) - 1).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mine.append(loss.detach())
        losses.append(torch.stack(mine))
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)


def test_a_step_unrolled_by_hand() -> None:
    """One step of MAML: the outer gradient goes through the inner one."""

    def model(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w + b)

    found = []
    for run in (model, framesmith.compile(model)):
        torch.manual_seed(0)
        w, b = torch.randn(4, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
        x, y = torch.randn(5, 4), torch.randn(5, 2)
        grads = torch.autograd.grad(F.mse_loss(run(x, w, b), y), (w, b), create_graph=True)
        stepped = [value - 0.1 * grad for value, grad in zip((w, b), grads, strict=True)]
        F.mse_loss(run(x, *stepped), y).backward()
        found.append((w.grad, b.grad))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_gradcheck_and_gradgradcheck() -> None:
    run = framesmith.compile(lambda x, w: (F.softplus(x @ w) * x.sum()).sin())
    torch.manual_seed(0)
    inputs = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)

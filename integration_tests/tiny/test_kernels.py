"""The default backend: kernels, gradients, training, dynamic shapes, modules and options, each once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import framesmith

pytestmark = pytest.mark.usefixtures("fresh")


def test_fused_kernels() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.nn.functional.gelu(x * 2 + 1), -1)

    x = torch.linspace(-2, 2, 60).reshape(4, 15)
    torch.testing.assert_close(framesmith.compile(f)(x), f(x))
    assert framesmith.stats()["graphs"] == 1


def test_gradients() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().square().sum()

    x, w = torch.linspace(-1, 1, 12).reshape(3, 4), torch.eye(4, requires_grad=True)
    (expected,) = torch.autograd.grad(f(x, w), [w])
    (found,) = torch.autograd.grad(framesmith.compile(f)(x, w), [w])
    torch.testing.assert_close(found, expected)


def test_a_training_step_of_a_module() -> None:
    def trained(compile: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        forward = framesmith.compile(model) if compile else model
        for _ in range(2):
            optimizer.zero_grad()
            forward(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    torch.testing.assert_close(trained(True), trained(False))


def test_dynamic_shapes_take_two_compilations() -> None:
    f = framesmith.compile(lambda x: (x * 2).sum(0) / x.shape[0])
    for rows in (4, 7, 9):
        torch.testing.assert_close(f(torch.ones(rows, 3)), torch.full((3,), 2.0))
    assert framesmith.stats()["frames_compiled"] == 2


def test_unbacked_sizes_are_one_graph() -> None:
    f = framesmith.compile(lambda x: x[x > 0] * 2, fullgraph=True)
    for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([-1.0])):
        assert torch.equal(f(x), x[x > 0] * 2)


def test_explain_and_strict() -> None:
    f = framesmith.compile(lambda x: x.sin() + 1, strict=True)
    assert "sin" in str(framesmith.explain(f, torch.ones(2)))
    torch.testing.assert_close(f(torch.ones(2)), torch.ones(2).sin() + 1)

"""`torch.func.linearize`, `functionalize` and `stack_module_state` in compiled functions, against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, functionalize, grad, linearize, stack_module_state, vmap

import framesmith
from integration_tests.transforms.transforms import Tensor, outcome, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")

NET = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).requires_grad_(False)
MODELS = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh()).eval() for _ in range(3)]


def two(x: Tensor) -> Any:
    outputs, push = linearize(lambda a, b: (a * b, (a + b).sum()), x, x.cos())
    return outputs, push(x, x.sin()), push(x.sin(), x)


def trees(x: Tensor) -> Any:
    outputs, push = linearize(lambda d: {"s": d["a"].sin() * d["b"]}, {"a": x, "b": x.cos()})
    return outputs, push({"a": x, "b": x})


def mapped(x: Tensor) -> Any:
    outputs, push = linearize(lambda y: y.sin() * y.sum(), x)
    return outputs, vmap(push)(torch.stack([x, x * 2]))


def newton(x: Tensor) -> Any:
    for _ in range(3):
        value, push = linearize(lambda y: (y * y * y).sum() - 2, x)
        direction = torch.ones_like(x)
        x = x - value / push(direction) * direction
    return x


def with_tangents_that_have_a_history(x: Tensor) -> Any:
    tangent = torch.ones_like(x).requires_grad_()
    return linearize(lambda y: y.sin() * y, x)[1](tangent * 2)


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(-1)[:2].mul_(5)
    return y.add_(1).sin()


def drawn(x: Tensor) -> Tensor:
    return torch.empty_like(x).uniform_() + x


@torch.no_grad()
def of_models(x: Tensor) -> Any:
    parameters, buffers = stack_module_state(MODELS)
    return vmap(lambda p, b: functional_call(MODELS[0], (p, b), (x,)))(parameters, buffers)


WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "linear": lambda x: linearize(lambda y: y.sin() * y.sum(), x)[1](x.cos()),
    "of two": two,
    "of trees": trees,
    "of a layer": lambda x: linearize(NET, x)[1](x),
    "of a gradient": lambda x: linearize(grad(lambda y: y.sin().pow(3).sum()), x)[1](x),
    "under vmap afterwards": mapped,
    "steps": newton,
    "history of tangents": with_tangents_that_have_a_history,
    "functional": lambda x: functionalize(in_place)(x),
    "functional of a gradient": lambda x: functionalize(grad(lambda y: in_place(y).sum()))(x),
    "gradient of functional": lambda x: grad(lambda y: functionalize(in_place)(y).sum())(x),
    "functional draws": lambda x: functionalize(drawn)(x),
    "stacked models": of_models,
}


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str) -> None:
    run((WHOLE[name], [(plain(3, 4),)]))
    assert framesmith.stats()["breaks"] == 0


@pytest.mark.parametrize("name", ["functional", "gradient of functional"])
def test_training(name: str) -> None:
    run((WHOLE[name], [(t(3, 4),)]))


@pytest.mark.parametrize("name", ["linear", "of two", "of a layer", "functional", "stacked models"])
def test_dynamic_sizes(name: str) -> None:
    run((WHOLE[name], [(plain(size, 4),) for size in (3, 5, 2)]), dynamic=True)


def test_stacked_parameters_are_trained() -> None:
    def loss(x: Tensor) -> Any:
        parameters, buffers = stack_module_state(MODELS)
        stacked = vmap(lambda p, b: functional_call(MODELS[0], (p, b), (x,)))(parameters, buffers)
        return stacked.square().sum(), parameters["0.weight"]

    found = []
    for call in (loss, framesmith.compile(loss)):
        torch.manual_seed(5)
        value, weight = call(plain(6, 4))
        value.backward()
        found.append([value.detach(), weight.is_leaf, weight.requires_grad, weight.grad])
    torch.testing.assert_close(*found)


def raising(y: Tensor) -> Tensor:
    raise ValueError("mine")


def writes(y: Tensor) -> Tensor:
    return y.mul_(2) + 1


NOTED: list[int] = []


def noting(y: Tensor) -> Tensor:
    NOTED.append(1)
    return y.sin()


def push_outside(x: Tensor) -> Any:
    return linearize(torch.sin, x)[1]


BREAKS: dict[str, Callable[[Tensor], Any]] = {
    "a history": lambda x: linearize(torch.sin, x.clone().requires_grad_())[0],
    "random numbers": lambda x: linearize(lambda y: y * torch.rand(3), x)[0],
    "another structure": lambda x: linearize(torch.sin, x)[1](x, x),
    "another shape": lambda x: linearize(torch.sin, x)[1](x[:1]),
    "another type": lambda x: linearize(torch.sin, x)[1](x.double()),
    "a number": lambda x: linearize(lambda y: (y.sin(), 2), x)[0],
    "raises": lambda x: linearize(raising, x)[0],
    "an effect": lambda x: linearize(noting, x)[0],
    "under vmap": lambda x: vmap(lambda y: linearize(torch.sin, y)[0])(x.reshape(2, 3)),
    "functional writes": lambda x: functionalize(writes)(x),
    "functional views": lambda x: functionalize(lambda y: (y * 2)[1:], remove="mutations_and_views")(x),
    "functional aliases": lambda x: functionalize(lambda y: y.view(-1))(x),
    "functional of itself": lambda x: functionalize(lambda y: y)(x),
    "functional raises": lambda x: functionalize(raising)(x),
    "functional of nothing": lambda x: functionalize(torch.sin, remove="all")(x),
    "functional in vmap": lambda x: vmap(functionalize(lambda y: torch.zeros(3).add_(y)))(x.reshape(2, 3)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_it_runs_eagerly(name: str) -> None:
    function = BREAKS[name]
    compiled = framesmith.compile(function)
    for _ in range(2):
        NOTED.clear()
        want, noted = outcome(function, torch.arange(-2.0, 4.0)), len(NOTED)
        NOTED.clear()
        assert outcome(compiled, torch.arange(-2.0, 4.0)) == want
        assert len(NOTED) == noted
    framesmith.reset()
    with pytest.raises(Exception, match=r"fullgraph=True|mine"):
        framesmith.compile(function, fullgraph=True)(torch.arange(-2.0, 4.0))


def test_a_linear_function_may_leave_the_compiled_one() -> None:
    x = plain(3)
    for function in (push_outside, framesmith.compile(push_outside)):
        torch.testing.assert_close(function(x)(torch.ones(3)), x.cos())

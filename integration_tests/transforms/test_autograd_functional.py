"""`torch.autograd.functional` in compiled functions: in one graph, or torch's own call; both as in eager mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp

import framesmith
from integration_tests.transforms.transforms import Tensor, close, run

pytestmark = pytest.mark.usefixtures("fresh")

LINEAR = nn.Linear(4, 4).double()


def f(x: Tensor) -> Tensor:
    return x.sin() * x.sum()


def energy(x: Tensor) -> Tensor:
    return f(x).square().sum()


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y.sum(), (x.exp() + y).sum(0)


def of_two(x: Tensor, y: Tensor) -> Tensor:
    return (x * y.sin()).pow(3).sum()


def without_gradients(x: Tensor) -> Any:
    with torch.no_grad():
        return jacobian(f, x), hvp(energy, x, x)


def twice(x: Tensor) -> Any:
    return jacobian(lambda y: jacobian(f, y, create_graph=True).sum(), x, create_graph=True)


def random_energy(x: Tensor) -> Tensor:
    return (x * torch.rand(4)).pow(3).sum()


WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "vjp": lambda x: vjp(f, x, x.cos()),
    "vjp of one element": lambda x: vjp(energy, x),
    "vjp of two": lambda x: vjp(two, (x, x.cos()), (x, x[0])),
    "vjp of a layer": lambda x: vjp(LINEAR, x, x),
    "vjp of a constant": lambda x: vjp(lambda y: y.detach() * 2, x, x),
    "jvp": lambda x: jvp(f, x, x.cos()),
    "jvp of two": lambda x: jvp(two, (x, x.cos()), (x, x)),
    "vhp": lambda x: vhp(energy, x, x.cos()),
    "vhp of two": lambda x: vhp(of_two, (x, x.cos()), (x, x)),
    "vhp of random numbers": lambda x: vhp(random_energy, x, x.cos()),
    "hvp of random numbers": lambda x: hvp(random_energy, x, x.cos()),
    "hvp": lambda x: hvp(energy, x, x.cos()),
    "hvp of two": lambda x: hvp(of_two, (x, x.cos()), (x, x)),
    "jacobian": lambda x: jacobian(f, x),
    "jacobian of two": lambda x: jacobian(two, (x, x.cos())),
    "jacobian, vectorized": lambda x: jacobian(f, x, vectorize=True),
    "jacobian of a layer": lambda x: jacobian(LINEAR, x),
    "hessian": lambda x: hessian(energy, x),
    "hessian of two": lambda x: hessian(of_two, (x, x.cos())),
    "hessian, vectorized": lambda x: hessian(energy, x, vectorize=True),
    "without gradients": without_gradients,
}
RECORDED: dict[str, Callable[[Tensor], Any]] = {
    "vjp": lambda x: vjp(f, x, x.cos().detach(), create_graph=True),
    "jvp": lambda x: jvp(f, x, x.cos().detach(), create_graph=True),
    "hvp": lambda x: hvp(energy, x, x.cos().detach(), create_graph=True),
    "jacobian": lambda x: jacobian(f, x, create_graph=True),
    "hessian": lambda x: hessian(energy, x, create_graph=True),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str, requires_grad: bool) -> None:
    x = torch.randn(3, 4, dtype=torch.float64).requires_grad_(requires_grad)
    run((WHOLE[name], [(x,)]))


@pytest.mark.parametrize("name", RECORDED)
def test_history(name: str) -> None:
    run((RECORDED[name], [(torch.randn(3, 4, dtype=torch.float64, requires_grad=True),)]))


@pytest.mark.parametrize("name", ["vjp", "jvp", "hvp", "jacobian", "hessian"])
def test_dynamic_sizes(name: str) -> None:
    calls = [(torch.randn(size, 4, dtype=torch.float64),) for size in (3, 5, 2)]
    run((WHOLE[name], calls), dynamic=True)


EAGER: dict[str, Callable[[Tensor], Any]] = {
    "twice": lambda x: twice(x.clone().requires_grad_()),
    "strictly": lambda x: jacobian(f, x, strict=True),
    "forward": lambda x: jacobian(f, x, vectorize=True, strategy="forward-mode"),
    "history without one": lambda x: vjp(f, x, x, create_graph=True),
    "a number": lambda x: vjp(lambda y: 2, x),  # type: ignore[arg-type, return-value]
    "a list": lambda x: jacobian(lambda y: [y], x),  # type: ignore[arg-type, return-value]
    "no vector": lambda x: vjp(f, x),
    "a vector of another size": lambda x: jvp(f, x, x[0]),
    "a vector that is none": lambda x: hvp(energy, x, [x]),  # type: ignore[arg-type]
    "several elements": lambda x: hessian(f, x),
    "changes its argument": lambda x: jacobian(lambda y: y.mul_(2), x),
}


@pytest.mark.parametrize("name", EAGER)
def test_it_runs_eagerly(name: str) -> None:
    function = EAGER[name]
    x = torch.linspace(0, 1, 6).reshape(2, 3)
    eagerly, compiled = x.clone(), x.clone()
    try:
        want = function(eagerly)
    except Exception as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            framesmith.compile(function)(compiled)
    else:
        close(framesmith.compile(function)(compiled), want, [])
    torch.testing.assert_close(compiled, eagerly)
    framesmith.reset()
    with pytest.raises(RuntimeError, match="fullgraph=True"):
        framesmith.compile(function, fullgraph=True)(x)

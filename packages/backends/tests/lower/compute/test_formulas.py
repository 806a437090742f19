"""Formulas of composite functions, by the interpreter in float64, against torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from framesmith_backends.ir.expr import Expr, Load
from framesmith_backends.ir.spec import evaluate, grid_of
from framesmith_backends.ir.symbolic.index import Var, of
from framesmith_backends.lower.compute import formulas
from framesmith_backends.lower.compute.formulas import FORMULAS

N = Var("i", 41)
X = torch.linspace(-10, 10, 41, dtype=torch.float64)
G = torch.linspace(1, 2, 41, dtype=torch.float64)
aten = torch.ops.aten

FORWARD: tuple[tuple[Callable[[Expr], Expr], Callable[[torch.Tensor], torch.Tensor]], ...] = (
    (FORMULAS["relu"], F.relu), (FORMULAS["hardswish"], F.hardswish),
    (FORMULAS["hardsigmoid"], F.hardsigmoid),
    (formulas.sign, torch.sign), (lambda x: formulas.elu(x, 1.5, 1.0, 1.0), lambda x: F.elu(x, 1.5)),
    (lambda x: formulas.softplus(x, 2.0, 3.0), lambda x: F.softplus(x, 2.0, 3.0)),
    (lambda x: formulas.hardtanh(x, -2.0, 3.0), lambda x: F.hardtanh(x, -2.0, 3.0)),
    (lambda x: formulas.leaky_relu(x, 0.3), lambda x: F.leaky_relu(x, 0.3)),
)  # fmt: skip
BACKWARD: tuple[tuple[Callable[[Expr, Expr], Expr], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]], ...] = (
    (FORMULAS["tanh_backward"], aten.tanh_backward), (FORMULAS["sigmoid_backward"], aten.sigmoid_backward),
    (formulas.hardswish_backward, aten.hardswish_backward),
    (FORMULAS["hardsigmoid_backward"], aten.hardsigmoid_backward),
    (lambda g, x: formulas.threshold_backward(g, x, 1.0), lambda g, x: aten.threshold_backward(g, x, 1.0)),
    (lambda g, x: formulas.leaky_relu_backward(g, x, 0.3), lambda g, x: aten.leaky_relu_backward(g, x, 0.3, False)),
    (lambda g, x: formulas.softplus_backward(g, x, 1.0, 20.0), lambda g, x: aten.softplus_backward(g, x, 1.0, 20.0)),
)  # fmt: skip


def value(formula: Callable[..., Expr], *tensors: torch.Tensor) -> torch.Tensor:
    names = ["a", "b"][: len(tensors)]
    loads = [Load(name, (of(N),), "f64") for name in names]
    return evaluate(formula(*loads), grid_of((N,)), dict(zip(names, tensors)), {})


@pytest.mark.parametrize(("formula", "wanted"), FORWARD)
def test_forward(formula: Callable[..., Expr], wanted: Callable[..., torch.Tensor]) -> None:
    torch.testing.assert_close(value(formula, X), wanted(X))


@pytest.mark.parametrize(("formula", "wanted"), BACKWARD)
def test_backward(formula: Callable[..., Expr], wanted: Callable[..., torch.Tensor]) -> None:
    torch.testing.assert_close(value(formula, G, X), wanted(G, X), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("divisor", [3.0, -3.0, 0.7])
def test_floor_division_and_remainder(divisor: float) -> None:
    y = torch.full_like(X, divisor)
    torch.testing.assert_close(value(formulas.floor_divide, X, y), torch.floor_divide(X, y))
    torch.testing.assert_close(value(formulas.remainder, X, y), torch.remainder(X, y))

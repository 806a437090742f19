"""Forward derivatives where torch makes tangents that it knows to be zero, nested in all ways; random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import framesmith
from integration_tests.transforms.transforms import Tensor, run

pytestmark = pytest.mark.usefixtures("fresh")

LINEAR, NORM = nn.Linear(4, 4).double(), nn.LayerNorm(4).double()

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "hessians of examples": lambda x: vmap(hessian(lambda v: v.sin().square().sum()))(x),
    "hessians of a layer": lambda x: vmap(hessian(lambda v: LINEAR(v).tanh().square().sum()))(x),
    "jacobians of examples": lambda x: vmap(jacrev(lambda v: v.sin() * v.sum()))(x),
    "forward jacobians of examples": lambda x: vmap(jacfwd(lambda v: v.sin() * v.sum()))(x),
    "hessian of a gradient": lambda x: hessian(lambda v: grad(lambda u: u.pow(3).sum())(v).sin().sum())(x[0]),
    "hessian of a jacobian": lambda x: hessian(lambda v: jacrev(lambda u: u.pow(3))(v).sum())(x[0]),
    "jvp of a norm": lambda x: jvp(NORM, (x,), (x.cos(),)),
    "jacobian of a norm": lambda x: jacfwd(NORM)(x[0]),
    "hessian of a norm": lambda x: hessian(lambda v: NORM(v).square().sum())(x[0]),
    "jacobian of a jacobian": lambda x: jacrev(jacrev(lambda v: v.sin().square().sum()))(x[0]),
    "forward twice": lambda x: jacfwd(jacfwd(lambda v: v.sin().square().sum()))(x[0]),
    "forward over reverse": lambda x: jacfwd(jacrev(lambda v: F.mse_loss(LINEAR(v), v)))(x[0]),
    "vjp of dropout": lambda x: vjp(lambda v: F.dropout(v, 0.5).sin(), x)[1](x),
    "jvp of dropout": lambda x: jvp(lambda v: F.dropout(v, 0.5).sin(), (x,), (x,)),
    "gradient of dropout": lambda x: grad(lambda v: F.dropout(v, 0.5).sin().sum())(x),
    "dropout, one mask each": lambda x: vmap(lambda v: F.dropout(v, 0.5), randomness="different")(x),
    "dropout, one mask": lambda x: vmap(lambda v: F.dropout(v, 0.5), randomness="same")(x),
    "chunks": lambda x: vmap(lambda v: v + torch.randn_like(v), chunk_size=2, randomness="different")(x),
    "chunks of a jacobian": lambda x: jacrev(lambda v: v.sin() * v.sum(), chunk_size=2)(x[0]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, requires_grad: bool, dynamic: bool) -> None:
    x = torch.randn(3, 4, dtype=torch.float64).requires_grad_(requires_grad)
    run((PROGRAMS[name], [(x,)]), dynamic=dynamic)


INFINITE = torch.tensor([torch.inf, 1.0, torch.nan, -torch.inf])
FACTORS = torch.tensor([2.0, torch.inf, 3.0, 0.0])
#: Functions of one operand whose other operands have no tangents.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mul": lambda v: v * FACTORS,
    "div": lambda v: v / FACTORS,
    "of a divisor": lambda v: FACTORS / v,
    "mul, broadcast": lambda v: v * FACTORS.unsqueeze(1),
    "dot": lambda v: v @ FACTORS,
    "addcmul": lambda v: torch.addcmul(v, FACTORS, FACTORS),
    "atan2": lambda v: torch.atan2(v, FACTORS),
    "pow": lambda v: torch.pow(v, FACTORS),
    "sub": lambda v: torch.sub(FACTORS, v, alpha=2),
    "where": lambda v: torch.where(v > 0, v, FACTORS),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_zero_times_infinity(name: str) -> None:
    """A tangent that is known to be zero stays zero, whatever it is multiplied with."""

    def function(x: Tensor) -> Any:
        return jvp(FUNCTIONS[name], (x,), (torch.ones_like(x),))

    want = function(INFINITE)
    for backend in ("eager", "auto"):
        got = framesmith.compile(function, fullgraph=True, strict=True, backend=backend)(INFINITE)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
            assert torch.equal(one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan())

"""Random numbers in bodies: those of eager mode, drawn once, and the same in the backward pass.

The reference is the program in loops and branches of Python: torch's own backward pass draws others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops import scan, while_loop

import framesmith
from integration_tests.control_flow.steps import by_steps
from integration_tests.transforms.transforms import Tensor, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")

WEIGHT = nn.Parameter(torch.linspace(-1, 1, 3))


def dropped(x: Tensor) -> Any:
    return mapped(lambda row: F.dropout(row, 0.5) * WEIGHT, x)


def several(x: Tensor) -> Any:
    return mapped(lambda row, scale: F.dropout(row * scale, 0.3) + torch.rand_like(row) * row, x, x.sum())


def carried(x: Tensor) -> Any:
    return scan(lambda c, a: (F.dropout(c + a, 0.4), c * torch.randn(3)), x[0], x)


def carried_back(x: Tensor) -> Any:
    return scan(lambda c, a: (F.dropout(c + a, 0.4), c * torch.randn(3)), x[0], x, reverse=True)


def transposed(x: Tensor) -> Any:
    return mapped(lambda one: F.dropout(one.t(), 0.5).t() * 2, x.reshape(2, 2, 3))


def of_integers(x: Tensor) -> Any:
    return mapped(lambda row: row * torch.randint(5, (3,)) + row[torch.randperm(3)], x)


def unused(x: Tensor) -> Any:
    def body(row: Tensor) -> Tensor:
        torch.rand(3)
        return row.sin()

    return mapped(body, x)


def both_branches(x: Tensor) -> Any:
    def when_true(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) * torch.rand(3)

    return torch.cond(x.sum() > 0, when_true, lambda x: torch.bernoulli(x.sigmoid()) * x, (x,))


def one_branch(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x * torch.rand(3) * torch.randn(4, 1), lambda x: x.sin(), (x,))


def unused_in_a_branch(x: Tensor) -> Any:
    def when_true(x: Tensor) -> Tensor:
        with torch.no_grad():
            torch.rand(3)
        return x * 2

    return torch.cond(x.sum() > 0, when_true, lambda x: x.sin(), (x,))


ALL: list[Callable[[Tensor], Any]] = [
    dropped, several, carried, carried_back, transposed, of_integers, unused, both_branches, one_branch,
    unused_in_a_branch,
]  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", ALL, ids=lambda one: one.__name__)
def test_one_graph_with_the_numbers_of_eager_mode(
    function: Callable[[Tensor], Any], dynamic: bool | None, grad: bool
) -> None:
    def shifted(by: float) -> Tensor:
        return ((t if grad else plain)(4, 3).detach().abs() + by).requires_grad_(grad)

    WEIGHT.grad = None
    run((lambda x: function(x), [(shifted(0.1),), (shifted(-3),)]), by_steps(function), dynamic=dynamic)


def within_a_body(x: Tensor) -> Any:
    return mapped(lambda a: scan(lambda c, b: (c + F.dropout(b), c * b), a[0], a)[1], x.reshape(2, 2, 3))


def in_iterations(x: Tensor) -> Any:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, F.dropout(y)), (torch.tensor(0), x * 1))[1]


@pytest.mark.parametrize("function", [within_a_body, in_iterations], ids=lambda one: one.__name__)
def test_gradients_whose_draws_are_not_saved_are_refused(function: Callable[[Tensor], Any]) -> None:
    run((lambda x: function(x), [(plain(4, 3),)]), by_steps(function))
    with pytest.raises(framesmith.FramesmithError, match="random-body"):
        framesmith.compile(lambda x: function(x), strict=True)(t(4, 3))

"""`torch.cond` and `while_loop` in one graph, against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop

from integration_tests.transforms.transforms import Program, Tensor, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")

WEIGHT = nn.Parameter(torch.randn(3, generator=torch.Generator().manual_seed(1)))
FROZEN = torch.linspace(-1, 1, 3)


def by_sum(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))


def with_captured(x: Tensor) -> Any:
    y = x.exp()
    return torch.cond(x.mean() < 0, lambda: y * WEIGHT, lambda: (x + FROZEN) * y)


def trees(x: Tensor) -> Any:
    def when_true(d: Any, z: Tensor) -> Any:
        return {"a": d["x"] + z, "b": (z.sum(),)}

    def when_false(d: Any, z: Tensor) -> Any:
        return {"a": z.clone(), "b": (d["x"].prod(),)}

    return torch.cond(x[0, 0] > 0, when_true, when_false, ({"x": x}, x * 2))


def used_by_one_branch(x: Tensor) -> Any:
    y = x.tanh()
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x + y, (x,)) + WEIGHT


def nested(x: Tensor) -> Any:
    def inner(x: Tensor) -> Tensor:
        return torch.cond(x.max() > 1, lambda x: x * WEIGHT, lambda x: x - 1, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.relu(), (x,))


def changes_its_own(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.clone().mul_(2), lambda x: (x * 3).add_(1), (x,))


def scan_in_a_branch(x: Tensor) -> Any:
    def summed(x: Tensor) -> Tensor:
        return scan(lambda c, a: (c + a, c * a), x[0] * 0, x)[1]

    return torch.cond(x.sum() > 0, summed, lambda x: x * 0.5, (x,))


def halved(x: Tensor) -> Any:
    return while_loop(lambda x: x.abs().sum() > 1, lambda x: (x * 0.5 * WEIGHT.sigmoid(),), (x,))


def counted(x: Tensor) -> Any:
    def more(at: Tensor, x: Tensor) -> Tensor:
        return at < 4

    return while_loop(more, lambda at, x: (at + 1, (x * WEIGHT).sin()), (torch.tensor(0), x))


def never(x: Tensor) -> Any:
    return while_loop(lambda at, x: at < 0, lambda at, x: (at + 1, x * 2), (torch.tensor(0), x))


def loop_of_trees(x: Tensor) -> Any:
    limit = x.detach().abs().sum() * 3
    return while_loop(
        lambda d: d["total"] < limit + 0 * WEIGHT.sum(),
        lambda d: ({"total": d["total"] + d["x"].abs().sum() + 0.1, "x": d["x"] * 1.1},),
        ({"total": x.sum() * 0, "x": x},),
    )


def branch_in_a_loop(x: Tensor) -> Any:
    def body(at: Tensor, x: Tensor) -> Any:
        return at + 1, torch.cond(x.sum() > 0, lambda x: x - WEIGHT, lambda x: x * -0.5, (x,))

    return while_loop(lambda at, x: at < 3, body, (torch.zeros((), dtype=torch.int64), x))


def cond_and_loop(x: Tensor) -> Any:
    return counted(by_sum(x))[1].sum() + halved(x)[0]


WHOLE: list[Callable[[Tensor], Any]] = [
    by_sum, with_captured, trees, used_by_one_branch, nested, changes_its_own, scan_in_a_branch,
    halved, counted, never, loop_of_trees, branch_in_a_loop, cond_and_loop,
]  # fmt: skip


def program(function: Callable[[Tensor], Any], make: Callable[..., Tensor]) -> Program:
    def shifted(by: float) -> Tensor:
        return (make(4, 3).detach().abs() + by).requires_grad_(make is t)

    return lambda x: function(x), [(shifted(0.1),), (shifted(-3),)]


@pytest.mark.sampled(3)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["cpu", "aot_eager", "eager"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda one: one.__name__)
def test_inference(function: Callable[[Tensor], Any], backend: str) -> None:
    with torch.no_grad():
        run(program(function, plain), backend=backend)


@pytest.mark.sampled(3)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "aot_eager"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda one: one.__name__)
def test_training(function: Callable[[Tensor], Any], backend: str, dynamic: bool) -> None:
    run(program(function, t), backend=backend, dynamic=dynamic)

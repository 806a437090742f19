"""`scan`, `associative_scan` and `map` of torch in one graph, against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops import map as mapped

from integration_tests.control_flow.steps import by_steps
from integration_tests.transforms.transforms import Program, Tensor, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")

CELL = torch.nn.GRUCell(3, 3)
WEIGHT = torch.randn(3, generator=torch.Generator().manual_seed(1))


def decayed(before: Any, after: Any) -> Any:
    """Join two steps of `y = a * y + b`."""
    return before[0] * after[0], after[0] * before[1] + after[1]


def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    new = carry * 0.5 + x * WEIGHT
    return new, new.sin()


def sums(x: Tensor) -> Any:
    return associative_scan(torch.add, x, 0, combine_mode="generic")


def states(x: Tensor) -> Any:
    return associative_scan(decayed, (x.sigmoid(), x), dim=1, combine_mode="generic")


def states_reversed(x: Tensor) -> Any:
    return associative_scan(decayed, (x.sigmoid(), x.t()[:7].t()), -1, reverse=True, combine_mode="generic")


def one_slice(x: Tensor) -> Any:
    return associative_scan(torch.add, x[:1], 0, reverse=True, combine_mode="generic")


def with_captured(x: Tensor) -> Any:
    scale = x.mean()
    return associative_scan(lambda a, b: torch.maximum(a, b) + 0 * scale, x, 0, combine_mode="generic")


def of_matrices(x: Tensor) -> Any:
    turned = torch.stack([x, x.cos(), x.sin()], 1)
    return associative_scan(lambda a, b: a @ b, turned, 0, combine_mode="generic") * 0.1


def carried(x: Tensor) -> Any:
    return scan(step, torch.zeros(3), x)


def carried_along(x: Tensor) -> Any:
    return scan(lambda c, a: (c + a, (c * a).exp()), torch.ones(7) * x.mean(), x, dim=1)


def carried_back(x: Tensor) -> Any:
    return scan(lambda c, a: (c + a, c * a), x.sum(0), x.cos(), reverse=True)


def carried_trees(x: Tensor) -> Any:
    def combine(carry: Any, given: Any) -> Any:
        total = carry["total"] + given["x"]
        return {"total": total, "steps": carry["steps"] + 1}, [total * 2, given["y"].relu()]

    return scan(combine, {"total": x[0] * 0, "steps": torch.tensor(0)}, {"x": x, "y": x.exp()})


def carried_by_matmul(x: Tensor) -> Any:
    weight = x[:3].clone()
    return scan(lambda c, a: (c @ weight + a, c.clone()), torch.zeros(2, 3), x.unsqueeze(1).expand(7, 2, 3))


def one_step(x: Tensor) -> Any:
    return scan(step, x[1], x[:1])


def own_tensors_changed(x: Tensor) -> Any:
    return scan(lambda c, a: ((c * 2).add_(a), a.clone().mul_(c)), x[0] * 0, x)


def nested(x: Tensor) -> Any:
    return scan(lambda c, row: (c + scan(step, c, row)[0], row.sum()), x[0].clone(), x.unsqueeze(1) * x)


def partly_used(x: Tensor) -> Any:
    return associative_scan(decayed, (x.sigmoid(), x * WEIGHT.detach()), 0, combine_mode="generic")[0]


def some_gradients(x: Tensor) -> Any:
    return associative_scan(decayed, (x.detach().sigmoid(), x), 0, reverse=True, combine_mode="generic")


def last_alone(x: Tensor) -> Any:
    return scan(lambda c, a: (c * a, c + a.detach()), x[0] * 0 + 1, x)[0]


def of_a_module(x: Tensor) -> Any:
    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        new = CELL(x.unsqueeze(0), carry)
        return new, new.clone()

    return scan(step, torch.zeros(1, 3), x)


def with_numbers(x: Tensor) -> Any:
    return mapped(lambda a: a * x.shape[0] + torch.arange(a.shape[0]), x)


def without_xs(x: Tensor) -> Any:
    return scan(step, x * 2, [])


def mapped_rows(x: Tensor) -> Any:
    return mapped(lambda row, scale: (row.softmax(0) * scale, row.sum()), x, x.mean())


def mapped_trees(x: Tensor) -> Any:
    return mapped(lambda d, k: {"a": d["x"] @ d["y"], "n": None, "b": d["x"].cumsum(0) * k}, {"x": x, "y": x + 1}, 2)


WHOLE: list[Callable[[Tensor], Any]] = [
    sums, states, states_reversed, one_slice, with_captured, of_matrices, partly_used, some_gradients,
    carried, carried_along, carried_back, carried_trees, carried_by_matmul, one_step, last_alone, of_a_module,
    own_tensors_changed, nested, without_xs, mapped_rows, mapped_trees, with_numbers,
]  # fmt: skip


def program(function: Callable[[Tensor], Any], make: Callable[[], Tensor]) -> Program:
    return lambda x: function(x), [(make(),), (make(),)]


@pytest.mark.sampled(3)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["cpu", "aot_eager", "eager"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda one: one.__name__)
def test_inference(function: Callable[[Tensor], Any], backend: str) -> None:
    run(program(function, lambda: plain(7, 3)), backend=backend)


#: Programs whose gradients eager mode fails to compute.
FAIL_IN_EAGER = {carried_trees, nested, mapped_trees}


@pytest.mark.sampled(3)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "aot_eager"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda one: one.__name__)
def test_training(function: Callable[[Tensor], Any], backend: str, dynamic: bool) -> None:
    reference = by_steps(function) if function in FAIL_IN_EAGER else None
    run(program(function, lambda: t(7, 3)), reference, backend=backend, dynamic=dynamic)

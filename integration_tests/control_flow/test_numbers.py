"""Numbers that loops carry, that bodies compute, and that branches give, against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops import scan, while_loop, while_loop_stack_output

import framesmith
from integration_tests.control_flow.steps import by_steps
from integration_tests.transforms.transforms import Tensor, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")


def counted(x: Tensor) -> Any:
    return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 2 + i), (0, x))


def from_a_size(x: Tensor) -> Any:
    return while_loop(lambda i, y: i < x.shape[0] * 2, lambda i, y: (i + 1, y * 1), (x.shape[0], x))


def positions(x: Tensor) -> Any:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + y.narrow(0, i, 1) + y[i]), (0, x))


def never(x: Tensor) -> Any:
    return while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, y + i), (0, x))


def of_a_tensor(x: Tensor) -> Any:
    def body(i: int, y: Tensor) -> Any:
        return i + y.abs().sum().int().item(), y.abs() * 2

    return while_loop(lambda i, y: i < 9, body, (1, x))


def in_trees(x: Tensor) -> Any:
    return while_loop(
        lambda d: d["at"] < 3, lambda d: ({"at": d["at"] + 2, "y": d["y"] * d["at"]},), ({"at": 0, "y": x},)
    )


def conditions(x: Tensor) -> Any:
    return while_loop(lambda on, y: y.sum() < 99.0, lambda on, y: (False, y.abs() * 2), (True, x))


def constant_condition(x: Tensor) -> Any:
    return while_loop(lambda i, y: False, lambda i, y: (i + 1, y * 1), (torch.tensor(0), x))


def result_used(x: Tensor) -> Any:
    count, _ = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + 1), (0, x))
    return x * count, count


LOOPS: list[Callable[[Tensor], Any]] = [
    counted, from_a_size, positions, never, of_a_tensor, in_trees, conditions, constant_condition, result_used,
]  # fmt: skip


def numbers_of_branches(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (1, x * 2), lambda x: (x.shape[0], x.sin()), (x,))


def a_number_alone(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: 1, lambda x: 2, (x,))


def of_unbacked_sizes(x: Tensor) -> Any:
    return mapped(lambda row: row[row > 0].sum() * row[row > 0].shape[0], x)


def read_inside(x: Tensor) -> Any:
    at = x.abs().sum().int()
    return mapped(lambda row, at: row.narrow(0, at.item() % 3, 1) * row.shape[0], x, at)


def unbound(x: Tensor) -> Any:
    return scan(lambda c, a: (c + torch.stack(a.unbind()[::-1]), c * 1), x[0], x)


OTHERS: list[Callable[[Tensor], Any]] = [numbers_of_branches, a_number_alone, of_unbacked_sizes, read_inside, unbound]
backends = pytest.mark.parametrize("backend", ["cpu", "aot_eager", "eager"])
#: Programs whose bodies call `item`, or have results of unbacked sizes.
READING = (of_a_tensor, of_unbacked_sizes, read_inside)
is_dynamic = pytest.mark.parametrize("dynamic", [None, True])


@backends
@pytest.mark.sampled(3)
@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("function", [*LOOPS, *OTHERS], ids=lambda one: one.__name__)
def test_inference(function: Callable[[Tensor], Any], backend: str, dynamic: bool | None) -> None:
    if dynamic is False and function in READING:
        pytest.skip("with dynamic=False a graph does not read numbers")
    run((lambda x: function(x), [(plain(4, 3),), (plain(4, 3),)]), plain_of(function), backend=backend, dynamic=dynamic)


def plain_of(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any] | None:
    """Return the program by steps where eager mode itself refuses it, or its gradients."""
    return by_steps(function) if function in (of_unbacked_sizes, read_inside, numbers_of_branches) else None


@is_dynamic
@pytest.mark.parametrize("function", [numbers_of_branches, of_unbacked_sizes, read_inside, unbound])
def test_training(function: Callable[[Tensor], Any], dynamic: bool) -> None:
    run((lambda x: function(x), [(t(4, 3),), (t(4, 3),)]), plain_of(function), dynamic=dynamic)


def stacked(x: Tensor) -> Any:
    return while_loop_stack_output(lambda i, y: i < 4, lambda i, y: (i + 1, y.sin() * i), (torch.tensor(0), x), ())


def stacked_never(x: Tensor) -> Any:
    return while_loop_stack_output(lambda i, y: i < 0, lambda i, y: (i + 1, y.sin()), (torch.tensor(0), x), ())[1] * 2


@backends
@is_dynamic
@pytest.mark.parametrize("function", [stacked, stacked_never], ids=lambda one: one.__name__)
def test_stacks_of_a_loop(function: Callable[[Tensor], Any], backend: str, dynamic: bool) -> None:
    run((lambda x: function(x), [(plain(4, 3),), (plain(4, 3),)]), backend=backend, dynamic=dynamic)


def test_numbers_carried_with_gradients_are_refused_as_by_torch() -> None:
    found = []
    for function in (framesmith.compile(lambda x: counted(x)), counted):
        with pytest.raises(Exception) as error:
            function(t(4, 3))
        found.append(type(error.value))
    assert found[0] is found[1]

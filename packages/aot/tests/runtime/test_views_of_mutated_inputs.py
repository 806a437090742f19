"""Returned views of inputs that the graph mutates: autograd sees eager mode's views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, graph_of

Tensors = list[torch.Tensor]


def a_part_changed(x: Any, w: Any) -> Any:
    part = x[-1]
    part.add_(2.0)
    return part * w[0], part


def a_part_changed_by_a_weight(x: Any, w: Any) -> Any:
    part = x[0]
    part.mul_(w[0])
    return part.sin(), part, x


def the_whole_changed(x: Any, w: Any) -> Any:
    x.mul_(w)
    turned = x.t()
    return turned.exp(), turned, x.cos()


def two_parts(x: Any, w: Any) -> Any:
    one, two = x[0], x[1]
    one.mul_(w[0])
    return one * two, two, one


def a_view_of_a_view(x: Any, w: Any) -> Any:
    x.mul_(w)
    turned = x.t()
    part = turned[0]
    return part.sin(), turned.exp(), part, turned


def all_parts(x: Any, w: Any) -> Any:
    x.mul_(2)
    parts = x.unbind()
    return parts[0] * parts[1], parts[0], parts[1], parts[1].sin()


def changed_again_between(x: Any, w: Any) -> Any:
    x.mul_(w)
    between = x.sin()
    x.mul_(3)
    part = x[0]
    return between, part * part, part


def read_before_it_is_changed(x: Any, w: Any) -> Any:
    part = x[0]
    before = part * w[0]
    part.add_(1)
    return before, part * 2, part


def changed_unseen(x: Any, w: Any) -> Any:
    x.detach().add_(1)
    part = x[0]
    return part * part, part, w * 2


def changed_unseen_behind_the_view(x: Any, w: Any) -> Any:
    part = x[0]
    part.detach().add_(1)
    return part * w[0], part


def changed_by_data(x: Any, w: Any) -> Any:
    part = x[0]
    x.data.add_(1)
    return part.sin(), part, w * 2


def a_part_of_a_result_changed(x: Any, w: Any) -> Any:
    made = x * w
    part = made[0]
    part.mul_(w[1])
    return part.sin(), part, made


def a_result_changed(x: Any, w: Any) -> Any:
    made = x * w
    made.mul_(w)
    turned = made.t()
    return turned[0].sin(), turned, made.exp()


PROGRAMS = [
    a_part_changed, a_part_changed_by_a_weight, the_whole_changed, two_parts, a_view_of_a_view, all_parts,
    changed_again_between, read_before_it_is_changed, changed_unseen, changed_unseen_behind_the_view, changed_by_data,
    a_part_of_a_result_changed, a_result_changed,
]  # fmt: skip
FOR_LEAVES = [changed_unseen, changed_unseen_behind_the_view, changed_by_data]


def total(results: Any) -> torch.Tensor:
    return sum((result.pow(2) * (at + 1)).sum() for at, result in enumerate(results))


def each_by_each(results: Tensors, wanted: Tensors, seen: list[Any]) -> None:
    for result in results:
        seen += torch.autograd.grad(total([result]), [*wanted, *results], retain_graph=True, allow_unused=True)


def hooks(results: Tensors, wanted: Tensors, seen: list[Any]) -> None:
    for at, result in enumerate(results):
        result.register_hook(lambda grad, at=at: grad * (at + 2))
        result.retain_grad()
    total(results).backward()
    seen += [one.grad for one in [*results, *wanted]]


def twice(results: Tensors, wanted: Tensors, seen: list[Any]) -> None:
    grads = torch.autograd.grad(total(results), wanted, create_graph=True, allow_unused=True)
    sum(grad.sin().sum() for grad in grads if grad is not None).backward()
    seen += [*grads, *[one.grad for one in wanted]]


def twice_to_each(results: Tensors, wanted: Tensors, seen: list[Any]) -> None:
    grads = torch.autograd.grad(total(results), wanted, create_graph=True, allow_unused=True)
    second = sum(grad.sin().sum() for grad in grads if grad is not None)
    for one in [*wanted, *results]:
        seen += torch.autograd.grad(second, [one], retain_graph=True, allow_unused=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("act", [each_by_each, hooks, twice, twice_to_each], ids=lambda act: act.__name__)
@pytest.mark.parametrize(
    ("program", "leaf"), [*((one, False) for one in PROGRAMS), *((one, True) for one in FOR_LEAVES)],
    ids=lambda one: getattr(one, "__name__", "leaf" if one else "history"),
)  # fmt: skip
def test_views_of_changed_inputs_are_as_in_eager(program: Callable[..., Any], leaf: bool, act: Any) -> None:
    def inputs() -> tuple[Tensors, torch.Tensor]:
        torch.manual_seed(0)
        leaves = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        return leaves, leaves[0] if leaf else leaves[0] * 1

    (_, w), x = inputs()
    run = compiled(graph_of(program), [x, w])
    seen: list[list[Any]] = []
    for call in (program, run, run):
        leaves, x = inputs()
        results = [one for one in call(x, leaves[1]) if one.grad_fn is not None]
        seen.append([x.detach().clone(), *[one.detach().clone() for one in results]])
        try:
            act(results, leaves, seen[-1])
        except RuntimeError as error:
            seen[-1].append(str(error).split(",")[0][:60])
    for found in seen[1:]:
        assert len(found) == len(seen[0])
        for one, two in zip(found, seen[0], strict=True):
            if isinstance(two, torch.Tensor):
                torch.testing.assert_close(one, two)
            else:
                assert one == two

"""Mutated-input analysis: the variables that code may write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import relu_

from framesmith_dynamo.interpreter.decoded import decoded
from framesmith_dynamo.residual.mutated_inputs import written_names


def by_a_method(x: Any, y: Any) -> None:
    x.fill_(y.sum())


def through_views(x: Any, y: Any) -> None:
    x.view(-1).T[1:].data.mul_(y)


def by_a_subscript(x: Any, y: Any) -> None:
    x[1:, 0] = y


def by_a_slice(x: Any, y: Any) -> None:
    x[1:2] = y


def by_an_augmented_subscript(x: Any, y: Any) -> None:
    x[0] += y


def by_an_augmented_assignment(x: Any, y: Any) -> None:
    x *= y


def by_a_function(x: Any, y: Any) -> None:
    torch.relu_(x)


def by_a_function_of_that_name(x: Any, y: Any) -> None:
    relu_(x)


def by_an_inplace_argument(x: Any, y: Any) -> None:
    F.threshold(x, y.item(), 0.0, inplace=True)


def as_the_output(x: Any, y: Any) -> None:
    torch.add(y, 1, out=x)


def in_a_loop(x: Any, y: Any) -> None:
    for tensor in [x]:
        tensor.add_(y)


def unpacked(x: Any, y: Any) -> None:
    second, _ = x.split(1)
    second.add_(y)


def on_one_way(x: Any, y: Any) -> None:
    z = x if y.sum() > 0 else y
    z.add_(1)


def in_a_handler(x: Any, y: Any) -> None:
    try:
        y.cos()
    except ValueError:
        x.add_(1)


def of_one_of_two(x: Any, y: Any) -> None:
    torch.relu_(x if y.sum() > 0 else y.cos())


def by_a_bound_method(x: Any, y: Any) -> None:
    scale = x.mul_
    scale(y)


def through_a_function(x: Any, y: Any) -> None:
    torch.t(x).mul_(y)


def numbered(x: Any, y: Any) -> None:
    for _, (row, factor) in enumerate(zip(x, y.tolist(), strict=True)):
        row.mul_(factor)


def in_the_next_round(x: Any, y: Any) -> None:
    z = y.clone()
    for _ in range(2):
        z.mul_(2)
        z = x.view(-1)


def rest_of_some(x: Any, y: Any) -> None:
    _, *rest = [y.sum(), x]
    rest[0].mul_(2)


def with_all_arguments(x: Any, y: Any) -> None:
    torch.relu_(*[x])


WRITING = [
    numbered, in_the_next_round, of_one_of_two, by_a_bound_method, through_a_function, rest_of_some, with_all_arguments,
    by_a_method, through_views, by_a_subscript, by_a_slice, by_an_augmented_subscript, by_an_augmented_assignment,
    by_a_function, by_a_function_of_that_name, by_an_inplace_argument, as_the_output, in_a_loop, unpacked, in_a_handler,
]  # fmt: skip


@pytest.mark.parametrize("function", WRITING)
def test_what_is_written_to(function: Callable[..., Any]) -> None:
    names = written_names(decoded(function.__code__))
    assert "x" in names
    assert "y" not in names


def test_what_is_written_to_on_one_way() -> None:
    assert written_names(decoded(on_one_way.__code__)) >= {"x", "y"}


def of_a_result(x: Any, y: Any) -> Any:
    z = x.sin()
    z.add_(y)
    z[0] = x
    return z


def of_an_argument(x: Any, y: Any) -> Any:
    y.copy_(x)
    torch.mul(x, y, out=y)
    return y


def of_what_an_object_holds(x: Any, y: Any) -> None:
    x.buffer.copy_(y.detach())


def not_inplace(x: Any, y: Any) -> Any:
    return F.dropout(x, 0.5, True, inplace=False)


def of_shapes_alone(x: Any, y: Any) -> None:
    x.squeeze_()
    x.t_()


def of_another_of_that_name(x: Any, y: Any) -> Any:
    y.copy_(x.detach())
    x = x * 2
    x += 1
    return x


def of_attributes(x: Any, y: Any) -> Any:
    x.name = y
    x.__init__(y)
    return x.shape + y._version


@pytest.mark.parametrize(
    "function",
    [
        of_a_result,
        of_an_argument,
        of_another_of_that_name,
        of_what_an_object_holds,
        not_inplace,
        of_shapes_alone,
        of_attributes,
    ],
)
def test_what_is_not(function: Callable[..., Any]) -> None:
    assert "x" not in written_names(decoded(function.__code__))

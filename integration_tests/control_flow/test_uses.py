"""Control flow under second derivatives and checkpoints, and with errors inside."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as mapped
from torch.utils.checkpoint import checkpoint

import framesmith
from integration_tests.control_flow.steps import by_steps
from integration_tests.transforms.transforms import Tensor, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")


def carried(x: Tensor) -> Tensor:
    last, steps = scan(lambda c, a: (c * a.sigmoid() + a, (c * a).sin()), x[0] * 0, x)
    return last.sum() + steps.sum()


def joined(x: Tensor) -> Tensor:
    def join(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * one[1] + other[1]

    return associative_scan(join, (x.sigmoid(), x), 0, combine_mode="generic")[1].square().sum()


def chosen(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: (x * x.exp()).sum(), lambda x: x.prod(), (x,))


def looped(x: Tensor) -> Tensor:
    return while_loop(lambda at, y: at < 3, lambda at, y: (at + 1, (y * x).sin()), (torch.tensor(0), x * 1))[1].sum()


def of_rows(x: Tensor) -> Tensor:
    return mapped(lambda a, k: (a * k).cos() * a, x, x.mean()).sum()


ALL: list[Callable[[Tensor], Tensor]] = [carried, joined, chosen, looped, of_rows]
by_name = pytest.mark.parametrize("function", ALL, ids=lambda one: one.__name__)


def reference(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return by_steps(function)


@by_name
def test_second_derivatives(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(0.2, 1, 12).reshape(4, 3).requires_grad_()

    def second(subject: Callable[[Tensor], Tensor]) -> list[Tensor]:
        [first] = torch.autograd.grad(subject(x), x, create_graph=True)
        return [first, *torch.autograd.grad(first.square().sum(), x)]

    compiled = framesmith.compile(lambda x: function(x), fullgraph=True, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the eager replay
        got = second(compiled)
    torch.testing.assert_close(got, second(reference(function)))


@by_name
def test_within_a_checkpoint(function: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor) -> Tensor:
        return checkpoint(lambda y: function(y.tanh()) * y, x, use_reentrant=False)

    def expected(x: Tensor) -> Tensor:
        return reference(function)(x.tanh()) * x

    run((program, [(t(4, 3),), (t(4, 3),)]), expected)


@by_name
def test_within_a_function(function: Callable[[Tensor], Tensor]) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return function(x) * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad * torch.ones(4, 3) * function(torch.ones(4, 3))

    run((lambda x: Twice.apply(x) + x, [(t(4, 3),), (t(4, 3),)]), lambda x: expected_twice(function, x))


def expected_twice(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    steps = reference(function)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return steps(x) * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad * torch.ones(4, 3) * steps(torch.ones(4, 3))

    made: Tensor = Twice.apply(x)
    return made + x


@pytest.mark.parametrize("function", [carried, joined], ids=lambda one: one.__name__)
def test_a_compiled_backward_pass(function: Callable[[Tensor], Tensor]) -> None:
    x = t(4, 3)
    [want] = torch.autograd.grad(reference(function)(x), x)
    for subject in (framesmith.compile(lambda x: function(x), fullgraph=True), function):
        with framesmith.compile_backward():
            for _ in range(2):
                x.grad = None
                subject(x).backward()
                torch.testing.assert_close(x.grad, want)


def indexed(x: Tensor, at: Tensor) -> Any:
    return scan(lambda c, a: (c + x[0].index_select(0, a.reshape(1))[0], c * 2), x[0, 0] * 0, at)


def test_an_error_of_a_step() -> None:
    x, at = plain(4, 3), torch.tensor([0, 1, 2, 5])
    compiled = framesmith.compile(indexed, fullgraph=True)
    torch.testing.assert_close(compiled(x, at.clamp(max=2)), by_steps(indexed)(x, at.clamp(max=2)))
    with pytest.raises(IndexError) as got:
        compiled(x, at)
    with pytest.raises(IndexError) as want:
        by_steps(indexed)(x, at)
    assert str(got.value).splitlines()[0] == str(want.value).splitlines()[0]
    torch.testing.assert_close(compiled(x, at.clamp(max=2)), by_steps(indexed)(x, at.clamp(max=2)))

"""Operators of `torch.library` in compiled functions, against eager mode: writes, derivatives, rules for `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith

pytestmark = pytest.mark.usefixtures("fresh")

Tensor = torch.Tensor
X = torch.linspace(-1, 1, 8)


@torch.library.custom_op("framesmith_tests::wave", mutates_args=())
def wave(x: Tensor) -> Tensor:
    return x.detach().sin()


@wave.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


wave.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@wave.register_vmap
def _(info: Any, in_dims: Any, x: Tensor) -> Any:
    return wave(x), in_dims[0]


@torch.library.custom_op("framesmith_tests::two", mutates_args=())
def two(x: Tensor, n: int) -> list[Tensor]:
    return [x * n, x + n]


@two.register_fake
def _(x: Tensor, n: int) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(x)]


two.register_autograd(
    lambda ctx, gradients: (gradients[0] * ctx.n + gradients[1], None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "n", inputs[1]),
)


@torch.library.custom_op("framesmith_tests::add_one_", mutates_args={"x"})
def add_one_(x: Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("framesmith_tests::scale_into", mutates_args={"out"})
def scale_into(x: Tensor, out: Tensor, factor: float) -> None:
    torch.mul(x, factor, out=out)


@torch.library.custom_op("framesmith_tests::counted", mutates_args={"state"})
def counted(x: Tensor, state: Tensor) -> Tensor:
    state.add_(x.sum())
    return x * 2


@counted.register_fake
def _(x: Tensor, state: Tensor) -> Tensor:
    return torch.empty_like(x)


def derivative(x: Tensor) -> Any:
    return (wave(x) * 2).sum()


def mapped(x: Tensor) -> Any:
    return torch.vmap(wave)(x.view(2, 4)).sum()


def of_a_list(x: Tensor) -> Any:
    a, b = two(x, 3)
    return (a * b).sum()


def write_to_a_constant(x: Tensor) -> Any:
    made = torch.zeros(8)
    add_one_(made)
    return (x * made).sum()


def write_where_gradients_flow(x: Tensor) -> Any:
    y = x * 2
    add_one_(y)
    return (y * 3).sum(), y


def write_to_a_view(x: Tensor) -> Any:
    y = x * 2
    add_one_(y[2:4])
    return y.sum(), y


def write_of_what_has_gradients(x: Tensor) -> Any:
    made = torch.empty(8)
    scale_into(x, made, 3.0)
    return (made * x).sum()


def write_to_what_is_saved(x: Tensor) -> Any:
    y = x.exp()
    z = y.sin()
    add_one_(y)
    return z.sum()


def result_without_formula(x: Tensor) -> Any:
    state = torch.zeros(())
    y = counted(x, state)
    return (y * state).sum(), state


def unused_result_without_formula(x: Tensor) -> Any:
    state = torch.zeros(())
    counted(x, state)
    return (x * state).sum(), state


PROGRAMS = [
    derivative, mapped, of_a_list, write_to_a_constant, write_where_gradients_flow, write_to_a_view,
    write_of_what_has_gradients, write_to_what_is_saved, result_without_formula, unused_result_without_formula,
]  # fmt: skip


def outcome(function: Callable[[Tensor], Any]) -> list[Any]:
    x = X.clone().requires_grad_()
    found = function(x)
    results = found if isinstance(found, tuple) else (found,)
    refusal = None
    try:
        results[0].backward()
    except RuntimeError as error:
        refusal = str(error).partition(" is at version")[0]
    return [refusal, [one.detach() for one in results], [one.requires_grad for one in results], x.grad]


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_one_graph(function: Callable[[Tensor], Any], backend: str) -> None:
    options: Any = {} if backend == "default" else {"backend": backend}
    compiled = framesmith.compile(function, fullgraph=True, strict=True, **options)
    for _ in range(2):
        (refused, *got), (expected, *want) = outcome(compiled), outcome(function)
        assert refused == expected
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)

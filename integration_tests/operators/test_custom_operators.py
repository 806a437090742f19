"""Operators of a user's own: their effects happen in eager's order and number, and their values are the real ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import framesmith

SEEN: list[tuple[str, object]] = []


def see(what: str, x: torch.Tensor) -> None:
    SEEN.append((what, x.detach().tolist()))


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    @torch.library.custom_op("integration_effects::log", mutates_args=())
    def log(x: torch.Tensor) -> None:
        see("log", x)

    @torch.library.custom_op("integration_effects::rows_above", mutates_args=())
    def rows_above(x: torch.Tensor) -> int:
        return int((x > 0).sum())

    @torch.library.custom_op("integration_effects::plus_one", mutates_args=())
    def plus_one(x: torch.Tensor) -> torch.Tensor:
        see("plus_one", x)
        return x + 1

    @torch.library.custom_op("integration_effects::scale", mutates_args=("x",))
    def scale(x: torch.Tensor, by: float) -> None:
        see("scale", x)
        x.mul_(by)

    @torch.library.custom_op("integration_effects::move", mutates_args=("x",))
    def move(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        see("move", x)
        x.add_(y)
        return x * 2

    log.register_fake(lambda x: None)
    rows_above.register_fake(lambda x: 0)
    plus_one.register_fake(torch.empty_like)
    scale.register_fake(lambda x, by: None)
    move.register_fake(lambda x, y: torch.empty_like(x))
    plus_one.register_autograd(lambda ctx, grad: grad)
    yield torch.ops.integration_effects


def unused(ops: Any, x: torch.Tensor) -> torch.Tensor:
    ops.log(x)
    ops.plus_one(x)
    ops.plus_one(x)
    ops.log(x * 2)
    return x.sin()


def between_kernels(ops: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    ops.log(y)
    z = ops.plus_one(y * 2)
    ops.log(z.sum())
    return z * y


def a_value(ops: Any, x: torch.Tensor) -> torch.Tensor:
    ops.log(x)
    return x * ops.rows_above(x)


def written(ops: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + 1
    ops.scale(y, 2.0)
    z = ops.move(y[0], x[1])
    ops.log(y)
    ops.scale(x, 3.0)
    return x, y, z


def written_views(ops: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.t()
    ops.scale(y, 2.0)
    ops.scale(x[:1], 3.0)
    return x + y.t()


PROGRAMS = [unused, between_kernels, a_value, written, written_views]


def run(function: Callable[..., Any], x: torch.Tensor) -> tuple[Any, torch.Tensor, list[tuple[str, object]]]:
    SEEN.clear()
    result = function(x)
    return result, x, list(SEEN)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(ops: Any, program: Callable[..., Any], mode: Callable[[], Any]) -> None:
    compiled = framesmith.compile(lambda x: program(ops, x))
    with mode(), warnings.catch_warnings():
        warnings.simplefilter("error", framesmith.FramesmithWarning)
        for _ in range(3):
            x = torch.rand(3, 3)
            wanted, x_wanted, effects = run(lambda x: program(ops, x), x.clone())
            found, x_found, seen = run(compiled, x.clone())
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(x_found, x_wanted)
            assert [what for what, _ in seen] == [what for what, _ in effects]
            for (_, one), (_, other) in zip(seen, effects):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


def test_gradients_pass_through(ops: Any) -> None:
    compiled = framesmith.compile(lambda x: between_kernels(ops, x))
    gradients = []
    for function in (lambda x: between_kernels(ops, x), compiled, compiled):
        x = torch.arange(4.0).requires_grad_()
        function(x).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])

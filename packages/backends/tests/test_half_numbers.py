"""Numbers beside half tensors: rounded to their type, or not, as ATen does with each operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tracing import trace

from framesmith_backends import CpuBackend

CPU = CpuBackend()

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: x + 0.1,
    "sub": lambda x: x - 0.3,
    "rsub": lambda x: 0.3 - x,
    "mul": lambda x: x * 0.3,
    "div": lambda x: x / 0.3,
    "floor_divide": lambda x: x // 0.3,
    "eq": lambda x: x == 0.1,
    "gt": lambda x: x > 0.1,
    "remainder": lambda x: x % 0.1,
    "fmod": lambda x: torch.fmod(x, 0.1),
    "pow": lambda x: x.abs() ** 1.7,
    "roots": lambda x: x**0.5,
    "inverse roots": lambda x: x**-0.5,
    "clamp": lambda x: x.clamp(max=0.1) == x,
    "where": lambda x: torch.where(x > 0, x, 0.1),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "full": lambda x: x * torch.full_like(x, 0.3) == x * 0.3,
    "no dimensions, mul": lambda x: x * torch.tensor(0.3),
    "no dimensions, eq": lambda x: x == torch.tensor(0.1),
    "no dimensions, first": lambda x: torch.tensor(0.3) * x,
    "integers": lambda x: x + torch.tensor([70000, 3, 5, 2, 1, 7, 8, 100000]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_eager(name: str, dtype: torch.dtype) -> None:
    values = [0.1, -0.1, -0.0, 3.7, float("-inf"), float("inf"), 0.3, -2.7]
    x = torch.tensor(values, dtype=dtype)
    (found,) = CPU.compile(trace(FUNCTIONS[name], [x]), [x])([x])
    wanted = FUNCTIONS[name](x)
    assert found.dtype == wanted.dtype
    rounded_twice = name == "inverse roots" and dtype == torch.bfloat16  # in eager: the root, then its inverse
    torch.testing.assert_close(found, wanted, rtol=2**-7 if rounded_twice else 0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit(), wanted.signbit()) or found.isnan().any()


@pytest.mark.parametrize("value", [1e-20, 0.0])
def test_products_are_scaled_first(value: float) -> None:
    x, large = torch.zeros(3), torch.full((3,), 1e20)
    for function in (
        lambda a, b: torch.addcmul(a, b, b, value=value),
        lambda a, b: torch.addcdiv(a, b, b * 0 + 1e-20, value=value),
    ):
        (found,) = CPU.compile(trace(function, [x, large]), [x, large])([x, large])
        torch.testing.assert_close(found, function(x, large))


def test_complex_numbers_are_left_to_aten() -> None:
    x = torch.tensor([0.0, 1.0])
    (found,) = CPU.compile(trace(lambda a: a == 1j, [x]), [x])([x])
    assert found.tolist() == [False, False]

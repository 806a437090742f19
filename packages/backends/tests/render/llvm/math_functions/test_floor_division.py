"""Floor division of floats: every bit as eager's in float32, which follows CPython."""

from __future__ import annotations

import math

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend

NUMBERS = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.1, 7.0, math.inf, -math.inf, math.nan, 3.4e38, -3.4e38]
NUMBERS += [1e-45, -1e-38, 2.0**22, 2.0**22 - 1, -(2.0**23) + 1, 2.0**24]
COUNT = 100_003


def any_bits() -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, (COUNT,)).to(torch.int32).view(torch.float32)


def special() -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.tensor(NUMBERS)
    return one.repeat_interleave(len(one)), one.repeat(len(one))


def near_multiples() -> tuple[torch.Tensor, torch.Tensor]:
    """Quotients that are whole, or as near below a whole number as rounding hides."""
    y = torch.empty(COUNT).uniform_(-10, 10)
    x = y * torch.randint(-(2**23), 2**23, (COUNT,))
    steps = torch.randint(-1, 2, (COUNT,), dtype=torch.int32)
    return (x.view(torch.int32) + steps).view(torch.float32), y


def small() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(-50, 50, (COUNT,)) * 0.1, torch.randint(-9, 9, (COUNT,)) * 0.1


MAKERS = {
    "special": special,
    "any bits": lambda: (any_bits(), any_bits()),
    "ordinary": lambda: (torch.empty(COUNT).uniform_(-10, 10), torch.empty(COUNT).uniform_(-10, 10)),
    "near multiples": near_multiples,
    "small": small,
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MAKERS)
def test_as_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = [x.to(dtype) for x in MAKERS[name]()]
    (found,) = CpuBackend().compile(trace(torch.floor_divide, inputs), inputs)(list(inputs))
    # Of low-precision types eager rounds what is in between, too, and is off by one or two at times.
    wanted = torch.floor_divide(*(x.float() for x in inputs)).to(dtype)
    known = ~wanted.isnan()
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found[known], wanted[known])
    assert torch.equal(found[known].signbit(), wanted[known].signbit())

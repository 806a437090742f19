"""Shifts of integers, and divisions of them by known numbers: exact, in every type, at the ends of each."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.ir.dtypes import FROM_TORCH
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.target import CPU

TYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
#: Whole powers, their neighbours, primes; some at the ends of what is divided by two matmuls.
DIVISORS = [1, 2, 3, -3, 6, 7, 64, 100, 641, 1000003, -1000003, (1 << 33) + 1, 12345678901, (1 << 48) - 1, 1 << 48]
DIVISORS += [(1 << 48) + 1, -(1 << 48) + 1, 1 << 62, (1 << 62) + 1]


def run(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    gm = trace(function, inputs)
    assert not lower_graph(gm, CPU).notes, "it is to be a kernel"
    (found,) = CpuBackend().compile(gm, inputs)(list(inputs))
    return found


def spread(dtype: torch.dtype, count: int = 4000) -> torch.Tensor:
    """Numbers of all sizes, and the ends of the type."""
    generator = torch.Generator().manual_seed(0)
    limits = torch.iinfo(dtype)
    x = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
    x = x >> torch.randint(0, 63, (count,), generator=generator)
    ends = torch.tensor([limits.min, limits.max, limits.max - 1, 0, 1]).to(dtype)
    return torch.cat([x.to(dtype), ends])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", TYPES, ids=FROM_TORCH.get)
def test_shifts_equal_eagers(dtype: torch.dtype) -> None:
    x = spread(dtype)
    by = torch.randint(0 if dtype == torch.uint8 else -3, 70, x.shape).to(dtype)
    for function in (torch.bitwise_left_shift, torch.bitwise_right_shift):
        assert torch.equal(run(function, x, by), function(x, by))
        for number in (0, 1, 5, 7, 8, 63, 64):
            assert torch.equal(run(lambda v, f=function, n=number: f(v, n), x), function(x, number))
        assert torch.equal(run(lambda v, f=function: f(3, v), by), function(3, by))
    assert torch.equal(run(lambda v: (v << 3) ^ (v >> 2), x), (x << 3) ^ (x >> 2))


def test_a_number_that_the_type_does_not_hold_is_atens() -> None:
    gm = trace(lambda v: v << 300, [torch.tensor([1], dtype=torch.uint8)])
    assert any("does not hold" in note for note in lower_graph(gm, CPU).notes.values())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("divisor", DIVISORS)
def test_quotients_of_longs_by_a_known_number(divisor: int) -> None:
    generator = torch.Generator().manual_seed(abs(divisor) % 1000)
    most = (2**63 - 1) // abs(divisor)
    whole = torch.randint(-most, most + 1 if most < 2**63 - 1 else most, (3000,), generator=generator)
    whole = whole >> torch.randint(0, max(1, most.bit_length()), (3000,), generator=generator)
    x = torch.cat([spread(torch.int64), *(whole * divisor + near for near in (-1, 0, 1))])
    for mode in ("trunc", "floor"):
        function = lambda v, m=mode: torch.div(v, divisor, rounding_mode=m)  # noqa: E731
        assert torch.equal(run(function, x), function(x))
    assert torch.equal(run(lambda v: v % divisor, x), x % divisor)
    assert torch.equal(run(lambda v: torch.fmod(v, divisor), x), torch.fmod(x, divisor))


def test_quotients_of_longs_by_many_numbers() -> None:
    chosen = random.Random(0)
    x = spread(torch.int64, 20000)
    for _ in range(20):
        divisor = chosen.randrange(3, 1 << chosen.randrange(3, 48)) * chosen.choice((1, -1))
        assert torch.equal(run(lambda v, d=divisor: v // d, x), x // divisor), divisor

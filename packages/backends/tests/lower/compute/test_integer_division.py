"""Integers divided by tensors: what eager gives, an error where it has one, and no exception of the processor's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from case_selection.sweeps import examples
from graphs.tracing import trace
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.target import CPU

Tensor = torch.Tensor
TYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "floor": torch.floor_divide,
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}


def compiled(function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    gm = trace(lambda a, b: (function(a, b),), [a, b])
    assert not lower_graph(gm, CPU).notes
    return CpuBackend().compile(gm, [a, b])([a, b])[0]


def numbers(dtype: torch.dtype, count: int, seed: int) -> Tensor:
    """Of all sizes, those about powers of two and the ends of the type among them."""
    ends, drawn = torch.iinfo(dtype), torch.Generator().manual_seed(seed)
    bits = torch.randint(0, ends.bits, (count,), generator=drawn)
    near = torch.randint(-3, 4, (count,), generator=drawn)
    sign = torch.randint(0, 2, (count,), generator=drawn) * 2 - 1
    spread = torch.randint(0, 2, (count,), generator=drawn) * torch.randint(-(2**62), 2**62, (count,), generator=drawn)
    value = sign * ((torch.ones((), dtype=torch.int64) << bits) + near + (spread >> (63 - bits)))
    value[:: max(count // 5, 1)] = ends.max
    value[1 :: max(count // 5, 1)] = ends.min
    return value.to(dtype)


@settings(max_examples=examples(80), deadline=None)
@given(st.sampled_from(TYPES), st.sampled_from(sorted(FUNCTIONS)), st.integers(1, 300), st.integers(0, 10**6))
def test_quotients_and_rests(dtype: torch.dtype, name: str, count: int, seed: int) -> None:
    a, b = numbers(dtype, count, seed), numbers(dtype, count, seed + 1)
    b = torch.where(b == 0, 3, b).to(dtype)
    if dtype.is_signed:  # a processor's own exception in eager mode
        b = torch.where((a == torch.iinfo(dtype).min) & (b == -1), 7, b).to(dtype)
    assert torch.equal(compiled(FUNCTIONS[name], a, b), FUNCTIONS[name](a, b))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_neighbours_of_multiples(dtype: torch.dtype) -> None:
    ends = torch.iinfo(dtype)
    for divisor in (1, 3, 7, 97, 2 ** (ends.bits // 2) - 1, 2 ** (ends.bits - 3) + 5, ends.max, ends.max - 1):
        b = torch.tensor([divisor, -divisor] * 512 if dtype.is_signed else [divisor] * 1024, dtype=dtype)
        b = torch.where(b == -1, 1, b).to(dtype)
        multiple = b.to(torch.int64) * torch.randint(0, ends.max // divisor, (1024,))
        a = (multiple + torch.randint(-1, 2, (1024,))).clamp(ends.min, ends.max).to(dtype)
        for function in FUNCTIONS.values():
            assert torch.equal(compiled(function, a, b), function(a, b))


@pytest.mark.parametrize("dtype", TYPES[:4], ids=str)
def test_the_least_number_by_minus_one(dtype: torch.dtype) -> None:
    a, b = torch.full((40,), torch.iinfo(dtype).min, dtype=dtype), torch.full((40,), -1, dtype=dtype)
    assert torch.equal(compiled(torch.floor_divide, a, b), a)
    assert torch.equal(compiled(torch.remainder, a, b), a * 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_division_by_zero_is_an_error(name: str, dtype: torch.dtype) -> None:
    a = torch.arange(1, 51).to(dtype)
    for at in (0, 24, 49):
        b = torch.ones(50, dtype=dtype)
        b[at] = 0
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            FUNCTIONS[name](a, b)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(FUNCTIONS[name], a, b)


def test_nothing_divided_by_zero_is_no_error() -> None:
    a, b = torch.ones(0, 3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    gm = trace(lambda a, b: (torch.floor_divide(a, b),), [a, b])
    assert CpuBackend().compile(gm, [a, b])([a, b])[0].shape == (0, 3)


def test_types_and_shapes_that_meet() -> None:
    a, b = torch.arange(-60, 60).view(6, 20), (torch.arange(20) - 30).to(torch.int16)
    assert torch.equal(compiled(torch.floor_divide, a, b), a // b)
    assert torch.equal(compiled(torch.remainder, a, b[3]), a % b[3])
    assert torch.equal(compiled(torch.remainder, b, a[:, :1] * 2 + 1), b % (a[:, :1] * 2 + 1))

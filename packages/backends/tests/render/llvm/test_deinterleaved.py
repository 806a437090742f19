"""Deinterleaved lanes of bfloat16, elements of even and of odd index, and the rounding that is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

import pytest
import torch
from graphs.tracing import trace
from sample_programs import row_column

from framesmith_backends import CpuBackend
from framesmith_backends.launch.llvm import engine as native

Tensor = torch.Tensor
CPU = CpuBackend()


@pytest.fixture(params=[16, 32, 64], ids=["NEON", "AVX2", "AVX-512"])
def register(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Registers of so many bytes, which LLVM has of several where the processor has none."""
    known = native.machine()
    if request.param == 32 and known.target.bytes < 32:
        pytest.skip("the processor has no AVX2")
    other = replace(known, target=replace(known.target, bytes=request.param), modules=WeakValueDictionary())
    monkeypatch.setattr(native, "machine", lambda: other)
    return int(request.param)


def compiled(function: Callable[..., object], *inputs: Tensor) -> list[Tensor]:
    return list(CPU.compile(trace(function, inputs), inputs)(list(inputs)))


def text(function: Callable[..., object], *inputs: Tensor) -> str:
    return CPU.explain(trace(function, inputs)).llvm


def numbers(*shape: int) -> Tensor:
    """Ordinary ones, and in each row those that are none, infinite or tiny."""
    x = torch.randn(*shape).bfloat16() * 3
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 3.3e38, 1e-40, -0.0]).bfloat16()
    x.view(-1)[: len(special)] = special[: x.numel()]
    return x


def chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = (x * 0.3 + y) * x
    return z - y / 3, torch.where(z > y, -x, y)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 7, 16, 31, 32, 33, 64, 100, 1000])
def test_elements_keep_their_order(register: int, size: int) -> None:
    x, y = numbers(size), numbers(size).flip(0)
    for found, wanted in zip(compiled(chain, x, y), chain(x, y), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("columns", [1, 7, 32, 40, 100, 1030])
def test_rows_of_one_number_and_of_many(register: int, columns: int) -> None:
    x, row, column = numbers(5, columns), torch.randn(columns).bfloat16(), torch.randn(5, 1).bfloat16()

    def mixed(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return a * b + c, c * 2 - b, a.amax(0), (a * c).amax(1), a + a.amax(1, keepdim=True)

    for found, wanted in zip(compiled(mixed, x, row, column), mixed(x, row, column), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("columns", [24, 64, 100, 1024])
def test_rows_and_columns_in_one_kernel(register: int, columns: int) -> None:
    """Sums down the columns lie in arrays of float32, and are stored in the order of the columns."""
    dy, x = torch.randn(70, columns).bfloat16(), torch.randn(70, columns).bfloat16()
    w = torch.arange(columns).bfloat16() / columns
    wanted = row_column.rms_norm(dy.double(), x.double(), w.double())
    for found, one in zip(compiled(row_column.rms_norm, dy, x, w), wanted, strict=True):
        torch.testing.assert_close(found.double(), one, rtol=0.05, atol=0.05 * one.abs().max().item())


def test_other_values_along_the_lanes_keep_their_order(register: int) -> None:
    x, y = torch.randn(3, 128).bfloat16(), torch.randn(3, 128)
    indices = torch.randint(0, 128, (3, 128))

    def others(a: Tensor, b: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        counted = a * torch.arange(128, device=a.device)
        return a + b, counted, a.gather(1, i), a.flip(1) * 2, a[:, ::2] * 3, (a > 0), a.float() * 2, a.argmax(1)

    for found, wanted in zip(compiled(others, x, y, indices), others(x, y, indices), strict=True):
        assert torch.equal(found, wanted)


def test_indirect_and_conditional_rows(register: int) -> None:
    """Whole rows are gathered or left out; sums of what takes long go down the columns in tiles."""
    x, rows = torch.randn(9, 96).bfloat16(), torch.randint(0, 9, (20,))

    def gathered(a: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        long = a
        for k in range(1, 9):
            long = (long + 1) / k
        return a[i] * 2 - a[0], torch.nn.functional.pad(a, (0, 0, 2, 1)) * 3, long.amax(0)

    for found, wanted in zip(compiled(gathered, x, rows), gathered(x, rows), strict=True):
        assert torch.equal(found, wanted)


def test_doubles_of_numbers_in_registers_are_widened_from_memory(register: int) -> None:
    x = torch.randn(6, 200).bfloat16() + 4
    x[2] *= 1e18
    found, wanted = compiled(lambda a: torch.var_mean(a, 1), x), torch.var_mean(x.double(), 1)
    for one, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=2.0**-8, atol=0)
    assert ("asm sideeffect" in text(lambda a: torch.var_mean(a, 1), x)) == (register == 32)


def test_no_element_is_widened_alone(register: int) -> None:
    """With registers of 32 bytes; NEON widens and narrows in one step each."""
    x, y = torch.randn(1 << 12).bfloat16(), torch.randn(1 << 12).bfloat16()
    rows = torch.randn(16, 1024).bfloat16()
    for found in (text(chain, x, y), text(lambda a: a / a.amax(1, keepdim=True), rows)):
        assert ("zext <" in found) == (register == 16)


@pytest.mark.sampled(3)
def test_passes_that_do_little_take_several_vectors(register: int) -> None:
    """Sums along rows, of which each vector's waits for itself, beside a pass that takes long."""

    def rows(a: Tensor) -> Tensor:
        largest = a.amax(1, keepdim=True)
        b = largest - a
        for k in range(1, 8):
            b = b * a + torch.sqrt(b.abs() + k) / 3
        return b

    x, odd = torch.randn(16, 1024), torch.randn(16, 9)
    assert f"load <{register} x float>" in text(rows, x)  # the largest number of a row
    for one in (x, odd):
        torch.testing.assert_close(compiled(rows, one)[0], rows(one))


def every() -> Tensor:
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [7, 100, 1 << 16])
def test_every_kind_of_number_is_rounded_to_nearest_even(register: int, size: int) -> None:
    raw = torch.arange(0, 1 << 32, (1 << 32) // size, dtype=torch.int64)
    halves = (raw & -(1 << 16)) + 0x8000  # halfway between two numbers
    bits = torch.cat([raw, halves, halves - 1, halves + 1])
    x = (bits - (bits >= 1 << 31).long() * (1 << 32)).to(torch.int32).view(torch.float32)
    (found,) = compiled(lambda a: a.bfloat16(), x)
    torch.testing.assert_close(found, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    (twice,) = compiled(lambda a: a.bfloat16() * 3.0 - 1.0, x)
    torch.testing.assert_close(twice, x.bfloat16() * 3.0 - 1.0, rtol=0, atol=0, equal_nan=True)


def test_doubling_needs_no_rounding() -> None:
    x = every()

    def doubled(a: Tensor) -> tuple[Tensor, ...]:
        return a + a, a * 4.0, -2.0 * a.abs(), (a + a) + (a + a)

    for found, wanted in zip(compiled(doubled, x), doubled(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert "32767" not in text(doubled, x) and "32767" in text(lambda a: a * 0.5, x)


def test_nans_of_sums_are_short() -> None:
    """Sums of numbers of bfloat16 have no NaN with lower bits; those that are read may."""
    x = torch.randn(8, 512).bfloat16()
    assert "uno" not in text(lambda a: a - a.float().sum(1, keepdim=True), x)
    long = torch.tensor([0x7FFFFFFF, -1, 0x7FFF8000, 0x7F800001], dtype=torch.int32).view(torch.float32).repeat(8)
    (found,) = compiled(lambda a: (a + 1).bfloat16(), long)
    assert found.isnan().all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("lane", range(32))
def test_a_condition_in_any_lane_is_seen(kind: str, lane: int) -> None:
    dtype = {"float": torch.float32, "double": torch.float64}[kind]
    x, y = torch.full((32,), 7.5, dtype=dtype), torch.full((32,), 2.0, dtype=dtype)
    x[lane] = 1e30
    assert torch.equal(compiled(torch.sin, x)[0][lane], torch.sin(x)[lane])
    if dtype == torch.float32:
        assert torch.equal(compiled(torch.floor_divide, x, y)[0], torch.floor_divide(x, y))

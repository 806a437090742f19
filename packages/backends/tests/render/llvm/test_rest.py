"""The remainder after the last whole block of lanes: computed again with the block before, where nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs.tracing import mutating, trace
from graphs.tracing_symbolic import trace_symbolic

from framesmith_backends import CpuBackend

CPU = CpuBackend()
SIZES = (1, 2, 15, 16, 17, 31, 33, 47, 63, 65, 100, 127, 129, 200)
Program = Callable[[torch.Tensor], Any]

PROGRAMS: dict[str, Program] = {
    "a chain": lambda x: (x * 2 + 1).relu(),
    "a type of another width": lambda x: (x > 0, x.double(), x.to(torch.int16)),
    "rows": lambda x: torch.softmax(x, -1),
    "rows kept from pass to pass": lambda x: torch.softmax(x.exp().log1p() * 2, -1) + x,
    "normalised rows": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "columns": lambda x: (x.sum(0), x - x.mean(0), x.amax(0)),
    "columns normalised": lambda x: torch.softmax(x, 0),
    "parts": lambda x: torch.cat([x, x * 2, x[:, :1]], -1),
    "every second": lambda x: x[:, ::2] + 1,
    "transposed": lambda x: x.t() + x.t().flip(0),
    "backwards": lambda x: x.flip(-1) + x,
    "a triangle": lambda x: torch.tril(x, 3) + torch.triu(x, -2),
    "indices compared": lambda x: torch.where(torch.arange(x.shape[-1]) >= 5, x, -x),
    "gathered": lambda x: x[:, torch.arange(x.shape[-1]) // 2],
    "a line": lambda x: x.reshape(-1) * 3,
    "rolled": lambda x: x.roll(3, -1) + x,
    "shifted": lambda x: torch.nn.functional.pad(x[:, 1:], (2, 1)) + torch.nn.functional.pad(x, (0, 2)),
}

#: Of (what is written, result), where what is written is read elsewhere in the same kernel.
IN_PLACE: dict[str, Program] = {
    "a chain": lambda x: (x * 2 + 1,),
    "a chain, and what it was": lambda x: (x * 2 + 1, x + 3),
    "rows": lambda x: (x - x.sum(-1, keepdim=True),),
    "rows by themselves": lambda x: (torch.softmax(x, -1), x.amax(-1)),
    "sums of rows": lambda x: (x.sum(-1, keepdim=True).expand(x.shape) + 0,),
    "columns": lambda x: (x - x.sum(0),),
    "sums of columns": lambda x: (x.sum(0).expand(x.shape) + 0,),
    "sums of columns and rows": lambda x: ((x - x.sum(0)) * 2, x.sum(-1)),
}


def same(found: tuple[Any, ...], wanted: Any) -> None:
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.sampled(44)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_length(name: str, size: int) -> None:
    x = torch.randn(7, size)
    same(CPU.compile(trace(PROGRAMS[name], [x]), [x])([x]), PROGRAMS[name](x))


@pytest.mark.sampled(18)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["parts", "a triangle", "indices compared", "rolled", "shifted"])
def test_parts_of_types_whose_reads_have_no_masks(name: str, dtype: torch.dtype) -> None:
    """Of 8 and 16 bits, before AVX-512: blocks of which all, none, or some are read."""
    for size in (3, 16, 33, 65, 130):
        x = (torch.randn(150, size) * 20).to(dtype)
        call = CPU.compile(trace(PROGRAMS[name], [x]), [x])
        assert torch.equal(call([x])[0], PROGRAMS[name](x))
        whole = trace(lambda x: torch.nn.functional.pad(x, (1, 3, 2, 2)), [x])
        assert torch.equal(CPU.compile(whole, [x])([x])[0], torch.nn.functional.pad(x, (1, 3, 2, 2)))


@pytest.mark.parametrize("size", [17, 33])
@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.int8, torch.uint8], ids=str
)
def test_one_narrow_element_at_the_end_of_a_row(dtype: torch.dtype, size: int) -> None:
    """It is written without what lies behind it: the next row, of which the first elements are there already."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.to(torch.bfloat16).exp().to(dtype), x.amax(0)

    x = torch.rand(7, size)
    narrow, largest = CPU.compile(trace(function, [x]), [x])([x])
    torch.testing.assert_close(narrow.float(), function(x)[0].float(), rtol=0.02, atol=0)
    assert torch.equal(largest, x.amax(0))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_dynamic_lengths(name: str) -> None:
    """Also those of less than a block, for which the first is not whole."""
    x = torch.randn(7, 37)
    call = CPU.compile(trace_symbolic(PROGRAMS[name], [x]), [x])
    for size in SIZES[2:]:
        x = torch.randn(7, size)
        same(call([x]), PROGRAMS[name](x))


@pytest.mark.sampled(20)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", IN_PLACE)
def test_inputs_are_written_in_place(name: str, size: int) -> None:
    """No element is computed again of what it has become."""
    x = torch.randn(7, size)
    changed, *wanted = IN_PLACE[name](x)
    target = x.clone()
    found = CPU.compile(mutating(IN_PLACE[name], [x], [0]), [target])([target])
    same((target, *found), (changed, *wanted))


@pytest.mark.parametrize("threads", [2, 5])
def test_shared_among_threads(threads: int) -> None:
    """The last range begins its last block in the range before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for size in (100_003, 65_537):
            x = torch.randn(1, size)
            same(CPU.compile(trace(PROGRAMS["a chain"], [x]), [x])([x]), PROGRAMS["a chain"](x))
    finally:
        torch.set_num_threads(before)


def test_without_masks() -> None:
    """No mask where an element may be computed twice; one where that would add it twice, or change it twice."""

    def has_masks(gm: torch.fx.GraphModule) -> bool:
        return "llvm.masked" in CPU.explain(gm).llvm

    x = torch.randn(7, 100)
    assert not has_masks(trace(PROGRAMS["a chain"], [torch.randn(7, 128)]))
    assert not has_masks(trace(PROGRAMS["a chain"], [x]))
    assert has_masks(trace(lambda x: x.sum(-1), [x]))
    assert has_masks(mutating(IN_PLACE["a chain"], [torch.randn(7, 101)], [0]))


def test_indices_are_compared_as_bytes() -> None:
    """A lane's number stands for its index: a vector of indices would be eight times as long."""
    llvm = CPU.explain(trace(torch.tril, [torch.randn(7, 128)])).llvm
    assert re.search(r"icmp slt <\d+ x i8>", llvm)
    for bound in (-(2**63), -5, 0, 3, 15, 16, 40, 126, 2**63 - 1):
        for function in (
            lambda x, bound=bound: torch.where(torch.arange(x.shape[-1]) < bound, x, -x),
            lambda x, bound=bound: torch.where(torch.arange(x.shape[-1]) >= bound, x, -x),
            lambda x, bound=bound: torch.where(torch.arange(x.shape[-1]) == bound, x, -x),
            lambda x, bound=bound: torch.where(torch.arange(x.shape[-1]) != bound, x, -x),
            lambda x, bound=bound: torch.where(torch.arange(x.shape[-1]) <= bound, x, -x),
            lambda x, bound=bound: torch.where(torch.arange(x.shape[-1]) > bound, x, -x),
        ):
            x = torch.randn(3, 126)
            same(CPU.compile(trace(function, [x]), [x])([x]), function(x))

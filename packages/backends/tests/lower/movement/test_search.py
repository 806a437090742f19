"""Binary searches: the indices that eager finds, also among what is in no order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from case_selection.sweeps import a_part, examples
from graphs.meaning import flat_memory, run_program
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.common_methods_invocations import op_db

from framesmith_backends import CpuBackend
from framesmith_backends.ir.expr import Const, Load, Op, indirect, number
from framesmith_backends.ir.ranges import is_within, range_of
from framesmith_backends.ir.symbolic.index import Var, of
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.plan import make_plan
from framesmith_backends.target import CPU

Tensor = torch.Tensor
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8)  # fmt: skip


def agree(function: Callable[..., Any], *inputs: Tensor) -> None:
    """The function in kernels alone gives what eager gives; so does what the program means, for one result."""
    wanted = function(*inputs)
    gm = trace(function, inputs)
    low = lower_graph(gm, CPU)
    assert not low.notes
    found = CpuBackend().compile(gm, inputs)(list(inputs))
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one, other)
    if isinstance(wanted, Tensor):
        names = low.program.inputs
        memory = {name: flat_memory(x, low.program.layouts[name]) for name, x in zip(names, inputs, strict=True)}
        last = list(low.program.defs)[-1]
        assert torch.equal(run_program(low.program, memory)[last].reshape(wanted.shape), wanted)


def numbers(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Few different numbers, many of them equal, in any order, some infinite or none."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    found = torch.randint(0, draw(st.sampled_from((3, 50))), shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        for special in draw(st.lists(st.sampled_from((math.nan, math.inf, -math.inf, -0.0)), max_size=3)):
            found[torch.rand(shape, generator=generator) < 0.2] = special
    return found


def with_gaps(x: Tensor) -> Tensor:
    wider = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
    wider[..., 1::2] = x
    return wider[..., 1::2]


COUNTS = st.integers(1, 9) | st.sampled_from((15, 16, 17, 31, 32, 33, 40, 63, 64, 100, 257))


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_boundaries_in_any_order(data: st.DataObject) -> None:
    own, other = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(DTYPES))
    boundaries = numbers(data.draw, (data.draw(COUNTS),), own)
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 3, 8, 37, 200)), max_size=2)))
    values = numbers(data.draw, shape, data.draw(st.sampled_from((own, other))))
    if data.draw(st.booleans()):
        boundaries = boundaries.sort().values
    if data.draw(st.booleans()):
        boundaries = with_gaps(boundaries)
    if len(shape) == 2 and data.draw(st.booleans()):
        values = values.t()
    narrow, right = data.draw(st.booleans()), data.draw(st.booleans())
    agree(lambda b, x: torch.searchsorted(b, x, out_int32=narrow, right=right), boundaries, values)
    agree(lambda b, x: torch.bucketize(x, b, out_int32=narrow, right=right), boundaries, values)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_boundaries_of_each_row(data: st.DataObject) -> None:
    rows = tuple(data.draw(st.lists(st.sampled_from((1, 2, 5, 40)), min_size=1, max_size=2)))
    dtype, count = data.draw(st.sampled_from(DTYPES)), data.draw(COUNTS)
    boundaries = numbers(data.draw, (*rows, count), dtype)
    values = numbers(data.draw, (*rows, data.draw(st.sampled_from((1, 3, 20, 150)))), dtype)
    if data.draw(st.booleans()):
        boundaries = with_gaps(boundaries)
    if data.draw(st.booleans()):
        boundaries = boundaries.transpose(0, -1).contiguous().transpose(0, -1)
    side = data.draw(st.sampled_from(("left", "right")))
    agree(lambda b, x: torch.searchsorted(b, x, side=side), boundaries, values)
    agree(lambda b, x, s: torch.searchsorted(b, x, side=side, sorter=s), boundaries, values, boundaries.argsort(-1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8], ids=str)
def test_a_number_is_searched(dtype: torch.dtype) -> None:
    boundaries = torch.tensor([1, 3, 3, 5, 7]).to(dtype)
    for value in (3, 300, 2.5, 3.0, math.nan, True):
        agree(lambda b, v=value: torch.searchsorted(b, v), boundaries)
        agree(lambda b, v=value: torch.bucketize(v, b, right=True, out_int32=True), boundaries)
    agree(lambda b, x: torch.searchsorted(b, x), boundaries, torch.tensor(3.0, dtype=torch.float64))


@pytest.mark.parametrize("count", [1 << 16, (1 << 20) + 3])
def test_many_boundaries(count: int) -> None:
    boundaries, values = torch.randn(count).sort().values, torch.randn(500)
    agree(lambda b, x: torch.searchsorted(b, x), boundaries, values)
    agree(lambda b, x: torch.searchsorted(b.view(1, -1), x[None]), boundaries, values)


def test_a_sorter_outside_is_an_error() -> None:
    boundaries, values, sorter = torch.randn(2, 5), torch.randn(2, 3), torch.arange(5).repeat(2, 1)
    function = lambda b, x, s: torch.searchsorted(b, x, sorter=s)  # noqa: E731
    gm = trace(function, (boundaries, values, sorter))
    call = CpuBackend().compile(gm, (boundaries, values, sorter))
    call([boundaries, values, sorter])
    for wrong in (-1, 5):
        sorter[1, 0] = wrong
        with pytest.raises(RuntimeError, match="sorter index out of range"):
            function(boundaries, values, sorter)
        with pytest.raises(RuntimeError, match="sorter index out of range"):
            call([boundaries, values, sorter])


def kernels(function: Callable[..., Any], *inputs: Tensor) -> int:
    plan = make_plan(lower_graph(trace(function, inputs), CPU).program, CPU)
    return sum(any(param.written for param in kernel.params) for kernel in plan.kernels)


def test_values_are_computed_once_before_the_search() -> None:
    boundaries, values = torch.randn(40).sort().values, torch.rand(3000)
    function = lambda b, x: torch.searchsorted(b, x.sqrt()) * 2 + 1  # noqa: E731
    agree(function, boundaries, values)
    assert kernels(function, boundaries, values) == 1

    def roots(function: Callable[..., Any]) -> int:
        llvm = CpuBackend().explain(trace(function, (boundaries, values))).llvm
        return sum("call" in line and "sqrt" in line for line in llvm.splitlines())

    # (The other's loop may be written twice, for several vectors at once and for one.)
    assert 0 < roots(function) <= roots(lambda b, x: x.sqrt() * 2 + 1)


def test_fused() -> None:
    boundaries, values, table = torch.randn(40).sort().values, torch.randn(60, 30), torch.randn(41)
    programs: list[Callable[..., Any]] = [
        lambda b, x, t: t[torch.searchsorted(b, x)] * x,
        lambda b, x, t: torch.bucketize(x, b).amax(1),
        lambda b, x, t: torch.bucketize(x.sum(1), b) + 1,
        lambda b, x, t: torch.bucketize(x, torch.arange(-3, 4)),
        lambda b, x, t: torch.bucketize(x, torch.linspace(-1, 1, 5) * 2),
        lambda b, x, t: torch.bucketize(x.relu(), t[3:20:2]),
        lambda b, x, t: torch.searchsorted(x.cumsum(1), x + 1),
    ]
    for program in programs:
        wanted = program(boundaries, values, table)
        gm = trace(program, (boundaries, values, table))
        (found,) = CpuBackend().compile(gm, (boundaries, values, table))([boundaries, values, table])
        assert torch.equal(found, wanted)
    assert kernels(programs[0], boundaries, values, table) == 1
    assert kernels(programs[3], boundaries, values, table) == 1


def test_computed_boundaries_are_computed_once() -> None:
    """Not again for each value, at each step."""
    boundaries, values = torch.rand(40).sort().values, torch.randn(60, 30)
    assert kernels(lambda b, x: torch.bucketize(x, b.log()), boundaries, values) == 2


REASONS: dict[str, tuple[Callable[..., Any], str]] = {
    "bools": (lambda b, x: torch.bucketize(x > 0, b > 0), "bools"),
    "no boundaries": (lambda b, x: torch.bucketize(x, b[:0]), "no elements"),
    "no values": (lambda b, x: torch.bucketize(x[:0], b), "no elements"),
}


@pytest.mark.parametrize("name", REASONS)
def test_searches_that_stay_with_aten(name: str) -> None:
    function, reason = REASONS[name]
    inputs = torch.arange(4.0), torch.randn(5)
    gm = trace(function, inputs)
    assert any(reason in note for note in lower_graph(gm, CPU).notes.values())
    call = CpuBackend().compile(gm, inputs)
    try:
        wanted = function(*inputs)
    except RuntimeError as error:
        with pytest.raises(type(error)):
            call(list(inputs))
    else:
        assert torch.equal(call(list(inputs))[0], wanted)


def test_dynamic_shapes() -> None:
    """Of the values they may; boundaries of changing number are ATen's."""
    boundaries, values = torch.arange(5.0), torch.randn(6, 7)
    fixed = trace_symbolic(lambda x: torch.bucketize(x, torch.arange(5)) * 2, [values])
    assert not lower_graph(fixed, CPU).notes
    call = CpuBackend().compile(fixed, [values])
    for shape in ((6, 7), (40, 33), (3, 2)):
        x = torch.randn(shape)
        assert torch.equal(call([x])[0], torch.bucketize(x, boundaries) * 2)
    changing = trace_symbolic(lambda b, x: torch.bucketize(x, b), [boundaries, values])
    assert any("no known number" in note for note in lower_graph(changing, CPU).notes.values())


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", ["searchsorted", "bucketize"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_samples_of_the_operator_database(name: str, dtype: torch.dtype) -> None:
    [op] = [op for op in op_db if op.name == name]
    reached = 0
    for sample in a_part(op.sample_inputs("cpu", dtype, requires_grad=False), 3, first=dtype.itemsize):
        tensors = {key: value for key, value in sample.kwargs.items() if isinstance(value, Tensor)}
        rest = {key: value for key, value in sample.kwargs.items() if key not in tensors}
        inputs = [sample.input, *(arg for arg in sample.args if isinstance(arg, Tensor)), *tensors.values()]

        def function(*given: Tensor, sample: Any = sample, rest: Any = rest, tensors: Any = tensors) -> Any:
            left = iter(given)
            first = next(left)
            args = [next(left) if isinstance(arg, Tensor) else arg for arg in sample.args]
            return op.op(first, *args, **dict(zip(tensors, left, strict=True)), **rest)

        wanted = function(*inputs)
        gm = trace(function, inputs)
        reached += not lower_graph(gm, CPU).notes
        (found,) = CpuBackend().compile(gm, inputs)(inputs)
        assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride()) and torch.equal(found, wanted)
    assert reached > 3


def test_ranges() -> None:
    x = Load("x", (of(Var("i", 4)),), "i32")
    assert range_of(x) == (-(1 << 31), (1 << 31) - 1)
    positive = Op("max", x, number(0, "i32"))
    small = Op("min", positive, number(9, "i32"))
    assert range_of(small) == (0, 9) and is_within(small, 10) and not is_within(small, 9)
    assert range_of(Op("where", Op("lt", x, small), small + 1, number(-3, "i32"))) == (-3, 10)
    assert range_of(Op("shr", small + small, number(1, "i32"))) == (0, 9)
    assert range_of(positive + 1) == range_of(x)  # it may wrap around
    assert range_of(small - small) == (-9, 9)
    assert range_of(Const(200, "i8")) == (-56, -56)
    assert range_of(Op("mul", small, small)) == range_of(x)


def test_indices_read_by_indices_have_short_names() -> None:
    """Text grows with the index, not with all ways through it."""
    index = Load("x", (of(Var("i", 4)),), "i64")
    for _ in range(20):
        index = Load("x", (indirect(index + index * index, 4),), "i64")
    assert len(repr(index)) < 1000
    other = Load("x", (of(Var("i", 4)),), "i64")
    for step in range(20):
        other = Load("x", (indirect(other + other * (other if step else 3), 4),), "i64")
    assert repr(other) != repr(index)

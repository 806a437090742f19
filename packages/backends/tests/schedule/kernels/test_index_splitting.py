"""Parts of a concatenation are written as such: no condition is left where they begin and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from case_selection.sweeps import examples
from graphs.tracing import mutating, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends import CpuBackend
from framesmith_backends.ir.expr import Const, Index, Load, Op, number, walk
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.spec import Memory, run_kernel
from framesmith_backends.ir.symbolic.index import Ix, Var, add, const, of, variables
from framesmith_backends.ir.symbolic.size import hint
from framesmith_backends.ir.verify import verify_kernel
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.fusion.group import Group
from framesmith_backends.schedule.kernels import index_splitting
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.kernels.index_splitting import along_lanes, decided, split_ranges
from framesmith_backends.schedule.plan import make_plan, scheduled, stored_names
from framesmith_backends.target import CPU

Tensor = torch.Tensor


def kernels(function: Callable[..., Any], *inputs: Tensor) -> list[Kernel]:
    """The kernels of the function, which gives what eager gives."""
    gm = trace(function, inputs)
    wanted = function(*inputs)
    for one, other in zip(CpuBackend().compile(gm, inputs)(list(inputs)), (wanted,)):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    return make_plan(lower_graph(gm, CPU).program, CPU).kernels


def conditions(kernel: Kernel) -> int:
    return sum(
        isinstance(node, Op) and node.name in ("lt", "ge") for one in kernel.passes for node in walk(*one.values)
    )


X, Y = torch.randn(64, 96), torch.randn(64, 96)
EQUAL_PARTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "columns": lambda x, y: torch.cat([x + y, x - y], 1),
    "rows": lambda x, y: torch.cat([x + y, x - y, x * y], 0),
    "layers": lambda x, y: torch.stack([x + y, x - y]),
    "between rows": lambda x, y: torch.stack([x + y, x - y], 1),
    "between elements": lambda x, y: torch.stack([x + y, x - y, x, y], -1),
    "halves": lambda x, y: torch.cat([-x[:, 48:], x[:, :48]], -1) * y,
    "a half of zeros": lambda x, y: F.pad(x * y, (96, 0)),
}


@pytest.mark.parametrize("name", EQUAL_PARTS)
def test_parts_of_one_size_are_written_by_one_kernel(name: str) -> None:
    [kernel] = kernels(EQUAL_PARTS[name], X, Y)
    assert not conditions(kernel)
    assert len(kernel.passes[0].stores) > 1


def test_other_parts_have_kernels_of_their_own_where_that_is_worth_it() -> None:
    many = kernels(lambda x, y: torch.cat([x, y[:, :80], x + y, x[:, :70]], 1), X, Y)
    assert len(many) == 4 and not any(map(conditions, many))
    few = kernels(lambda x, y: torch.cat([x, y[:, :80]], 1), X, Y)
    short = kernels(lambda x, y: torch.cat([x, y[:, :80], x + y, x[:, :40]], 1), X, Y)
    assert len(few) == len(short) == 1 and conditions(few[0]) and conditions(short[0])


def test_reductions_stay_whole() -> None:
    assert all(len(k.passes[0].stores) < 2 for k in kernels(lambda x, y: torch.cat([x, y], 1).sum(1), X, Y))


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_intervals_mean_what_the_kernel_means(data: st.DataObject) -> None:
    dim, count = data.draw(st.integers(0, 2)), data.draw(st.integers(2, 4))
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    if data.draw(st.booleans()):
        lengths = [lengths[0]] * count
    shapes = [tuple(n if k == dim else 3 + k for k in range(3)) for n in lengths]
    inputs = [torch.randn(shape) for shape in shapes]
    gm = trace(lambda *xs: F.pad(torch.cat([x.exp() * 2 for x in xs], dim), (data.draw(st.integers(0, 2)), 0)), inputs)
    program, nodes = scheduled(lower_graph(gm, CPU).program, CPU)
    stored = stored_names(program, nodes)
    memory: Memory = {name: x.flatten() for name, x in zip(program.inputs, inputs)}
    for name in stored:
        memory[name] = torch.zeros(program.layouts[name].numel)
    before, patch = dict(memory), pytest.MonkeyPatch()
    with patch.context() as m:
        m.setattr(index_splitting, "_is_worth_it", lambda kernel: True)
        m.setattr(index_splitting, "MANY_INTERVALS", 2)
        whole = [build_kernel(f"k{k}", program, n, stored) for k, n in enumerate(nodes) if isinstance(n, Group)]
        cut = [part for kernel in whole for part in split_ranges(kernel)]
    for kernel in whole:
        run_kernel(kernel, memory)
    after = {name: torch.full_like(value, 7.0) if name in stored else value for name, value in before.items()}
    for kernel in cut:
        verify_kernel(kernel)
        run_kernel(kernel, after)
    assert sum(map(conditions, cut)) < max(sum(map(conditions, whole)), 1)
    for name in stored:
        assert torch.equal(after[name], memory[name])


ALONG: dict[str, Callable[[Tensor], Tensor]] = {
    "padded": lambda x: F.pad(x * 2, (3, 1)),
    "reflected": lambda x: F.pad(x, (1, 1, 0, 1), mode="reflect") + 1,
    "rolled": lambda x: torch.roll(x, 5, 2) + x,
    "joined": lambda x: torch.cat([x[..., :1], x[..., 1:] + x[..., :-1]], -1),
    "one element": lambda x: torch.where(torch.arange(x.shape[-1]) < x.shape[-1] - 1, x, -x),
}


@pytest.mark.parametrize("lanes", [2, 4, 16])
@pytest.mark.parametrize("size", [9, 31, 32, 160])
@pytest.mark.parametrize("name", ALONG)
def test_intervals_of_a_row_follow_each_other(name: str, size: int, lanes: int) -> None:
    """They mean what the whole row means, and none has more lanes than elements."""
    x = torch.randn(2, 3, size)
    program, nodes = scheduled(lower_graph(trace(ALONG[name], [x]), CPU).program, CPU)
    [group] = [node for node in nodes if isinstance(node, Group)]
    [result] = stored = stored_names(program, nodes)
    kernel = build_kernel("k", program, group, stored)
    intervals = along_lanes(kernel, lanes)
    assert len(intervals) > 1 or size < 160
    memory: Memory = {program.inputs[0]: x.flatten(), result: torch.zeros(program.layouts[result].numel)}
    again: Memory = {**memory, result: torch.full_like(memory[result], 7.0)}
    run_kernel(kernel, memory)
    for interval, count in intervals:
        verify_kernel(interval)
        run_kernel(interval, again)
        if len(intervals) > 1:
            assert count == 1 if interval.lane is None else count <= min(hint(interval.lane.size), lanes)
            assert not any(
                isinstance(e, Index) and variables(e.ix) == {interval.lane} for e in walk(*interval.passes[0].values)
            )
    assert torch.equal(again[result], memory[result])


def test_an_input_is_written_in_place_only_where_no_part_reads_it() -> None:
    def rotated(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x[:, 48:] * 2, x[:, :48] + y[:, :48]], 1)

    for function in (rotated, lambda x, y: torch.cat([y[:, 48:] * 2, y[:, :48] + 1], 1)):
        gm = mutating(function, (X, Y), [0])
        x = X.clone()
        CpuBackend().compile(gm, (X, Y))([x, Y])
        torch.testing.assert_close(x, function(X, Y))


def test_conditions_that_are_decided_go() -> None:
    row = Var("i", 4)
    low, high = add(of(row), const(2)), number(2, "i64")
    load = Load("x", (of(row),), "f32", Op("and", Op("ge", Index(low), high), Op("lt", Index(low), number(4, "i64"))))
    assert decided(load) is Load("x", (of(row),), "f32", Op("lt", Index(low), number(4, "i64")))
    outside = Op("where", Op("lt", Index(low), high), load, Const(3.0, "f32"))
    assert decided(outside) is Const(3.0, "f32")
    assert decided(Load("x", (Ix(0),), "f32", Op("ge", Index(of(row)), number(9, "i64")))) is Const(0.0, "f32")
    either = Op("or", Op("lt", Index(of(row)), number(9, "i64")), Load("b", (of(row),), "b1"))
    assert decided(either) is Const(True, "b1")

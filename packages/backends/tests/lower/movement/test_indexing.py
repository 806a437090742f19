"""Reads at indices that tensors hold: what eager reads, and an error wherever eager has one."""

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
from lower.movement.index_cases import DTYPES, SHAPES, SIZES, agree, compiled, drawn_indices, filled

from framesmith_backends import CpuBackend
from framesmith_backends.ir.expr import Index, Load, indirect, number, substitute, walk
from framesmith_backends.ir.symbolic.index import Var, bounds, of
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.plan import make_plan
from framesmith_backends.schedule.steps import Run
from framesmith_backends.target import CPU

Tensor = torch.Tensor


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_rows_and_columns(data: st.DataObject) -> None:
    shape, dtype, gaps = data.draw(SHAPES), data.draw(st.sampled_from(DTYPES)), data.draw(st.booleans())
    x, dim = filled(shape, dtype, gaps), data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[dim]
    agree(lambda x, i: x.index_select(dim, i), x, drawn_indices(data.draw, (data.draw(SIZES),), 0, size))
    smaller = tuple(n if k == dim % len(shape) else data.draw(st.integers(1, n)) for k, n in enumerate(shape))
    wanted = tuple(data.draw(SIZES) if k == dim % len(shape) else n for k, n in enumerate(smaller))
    agree(lambda x, i: x.gather(dim, i), x, drawn_indices(data.draw, wanted, 0, size))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_advanced_indices(data: st.DataObject) -> None:
    shape, dtype, gaps = data.draw(SHAPES), data.draw(st.sampled_from(DTYPES)), data.draw(st.booleans())
    x, given = filled(shape, dtype, gaps), data.draw(st.lists(st.booleans(), min_size=1, max_size=len(shape)))
    common = data.draw(st.lists(SIZES, max_size=2).map(tuple))
    indices: list[Tensor] = []
    for k, size in enumerate(shape[: len(given)]):
        if given[k]:
            own = tuple(n if data.draw(st.booleans()) else 1 for n in common)
            indices.append(drawn_indices(data.draw, own, -size, size))
    if not indices:
        return

    def function(x: Tensor, *indices: Tensor) -> Tensor:
        rest = iter(indices)
        return torch.ops.aten.index.Tensor(x, [next(rest) if flag else None for flag in given])

    agree(function, x, *indices)
    agree(lambda x, i: x.take(i), x, drawn_indices(data.draw, common, -x.numel(), x.numel(), narrow=False))


def test_indices_in_another_order_in_memory() -> None:
    """The result has that order, too."""
    x, indices = filled((3, 40, 40), torch.float32), torch.randint(0, 3, (17, 17)).t()
    agree(lambda x, i, j: x[i, j], x, torch.zeros(1, 1, dtype=torch.int64), indices)
    agree(lambda x, i: x[i.t()], x, indices)


def test_indices_of_fewer_dimensions() -> None:
    x = filled((5, 6, 7), torch.float32)
    i, j = torch.randint(-5, 5, (3, 1)), torch.randint(-7, 7, (4,))
    agree(lambda x, i, j: x[i, :, j] + x[i, :, j[:1]], x, i, j)
    agree(lambda x, i, j: (x[i, 0, j], x[:, i, j], x[i[:, 0], :2]), x, i, j)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embeddings(dtype: torch.dtype) -> None:
    table, indices = filled((11, 37), dtype), torch.randint(0, 11, (3, 5))
    agree(lambda t, i: F.embedding(i, t), table, indices)
    agree(lambda t, i: F.embedding(i, t, padding_idx=2)[1], table.t().contiguous().t(), indices.int())
    agree(lambda t, i: F.embedding(i, t), table, indices[0, 0])


def test_gathers_are_fused() -> None:
    x, at = torch.randn(9, 40), torch.randint(0, 6, (6,))
    programs: list[Callable[..., Any]] = [
        lambda x, i: x[i] * 2 + 1,
        lambda x, i: torch.softmax(x[i] + x[0], -1),
        lambda x, i: (x * 3 + 1)[i].relu(),
        lambda x, i: torch.cat([x[i], x.index_select(0, i)], 1) * 2,
        lambda x, i: torch.arange(9)[i] + i,
        lambda x, i: F.pad(x[i], (1, 2)),
        lambda x, i: x[i][i],
    ]
    for program in programs:
        agree(program, x, at) if program is not programs[1] else compiled(program, x, at)
        gm = trace(program, (x, at))
        plan = make_plan(lower_graph(gm, CPU).program, CPU)
        assert sum(any(param.written for param in kernel.params) for kernel in plan.kernels) == 1


def test_indices_are_found_by_reductions() -> None:
    x, y = filled((9, 40), torch.float32), filled((6, 9), torch.float32)
    agree(lambda x, y: x[y.argmax(1)] + 1, x, y)
    agree(lambda x, y: x.gather(1, y.sum(1, keepdim=True).long().abs() % 40), x[:6], y)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.int8], ids=str)
def test_each_lane_has_its_reductions_index(dtype: torch.dtype) -> None:
    """Down columns a kernel's lanes are outer: the result of one reduction is another index in each of them."""
    for shape in ((128, 1000), (5, 67), (33, 2, 65), (1600, 3)):
        x, y = filled(shape, dtype), filled(shape[1:], dtype, gaps=True)
        agree(lambda x: x.gather(0, x.argmax(0, keepdim=True)), x)
        agree(lambda x, y: (y.flatten()[x.argmin(0) % y.numel()], torch.arange(400)[x.argmax(0)] + x.argmin(0)), x, y)


FAILING: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "rows": (lambda x, i: x.index_select(0, i), (-1, 5)),
    "columns": (lambda x, i: x.gather(0, i[:, None].expand(-1, 3)), (-1, 5)),
    "indices along rows": (lambda x, i: x.t().gather(1, i.expand(7, 4)), (-1, 5)),
    "words": (lambda x, i: F.embedding(i, x) * 2, (-1, 5)),
    "index": (lambda x, i: x[i] * 2, (-6, 5)),
    "second index": (lambda x, i: x.t()[:2, i] * 2, (-6, 5)),
    "element": (lambda x, i: x.take(i), (-36, 35)),
    "a part is used": (lambda x, i: x[i][:2].sum(0), (-6, 5)),
    "nothing is used": (lambda x, i: (x[i], x + 1)[1], (-6, 5)),
    "reduced": (lambda x, i: torch.softmax(x[i], -1), (-6, 5)),
    "one element": (lambda x, i: torch.ops.aten.index.Tensor(x[0], [i[-1]]), (-8, 7)),
}


@pytest.mark.parametrize("name", FAILING)
def test_reads_out_of_bounds_are_errors(name: str) -> None:
    function, wrong = FAILING[name]
    x, good = torch.randn(5, 7), torch.tensor([0, 1, 2, 3])
    call = compiled(function, x, good)
    for value in wrong:
        bad = torch.tensor([0, 1, 2, value])
        with pytest.raises((IndexError, RuntimeError)) as theirs:
            function(x, bad)
        with pytest.raises(theirs.type, match=r"out of (range|bounds)"):
            call(x, bad)
    for one, other in zip(call(x, good), (function(x, good),)):
        torch.testing.assert_close(one, other)


def test_far_indices_are_not_read_among_many_threads() -> None:
    x, at = torch.randn(1000, 64), torch.randint(0, 1000, (20000,))
    call = compiled(lambda x, i: x[i] * 2, x, at)
    at[17321] = 1 << 61
    with pytest.raises(IndexError, match="dimension 0 with size 1000"):
        call(x, at)


def test_an_input_is_not_written_where_a_check_fails() -> None:
    def step(x: Tensor, table: Tensor, at: Tensor) -> Tensor:
        return x + table[at]

    x, table, at = torch.zeros(4, 3), torch.ones(5, 3), torch.tensor([0, 1, 2, 4])
    gm = mutating(step, (x, table, at), [0])
    call = CpuBackend().compile(gm, (x, table, at))
    runs = [step for step in make_plan(lower_graph(gm, CPU).program, CPU).steps if isinstance(step, Run)]
    assert [[bool(kernel.checks) for kernel in run.kernels] for run in runs] == [[True, False]]
    call([x, table, at])
    assert torch.equal(x, torch.ones(4, 3))
    at[3] = 5
    with pytest.raises(IndexError):
        call([x, table, at])
    assert torch.equal(x, torch.ones(4, 3))


def test_many_launches_before_and_behind_a_check_are_functions_of_their_own() -> None:
    count = 70  # more launches than are one function

    def step(x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        before = [x.roll(k, 0).sum(k % 2) for k in range(count)]
        chosen = x[at].sum() + sum(one.sum() for one in before)
        return (x - chosen, *(x.roll(k, 0).sum(k % 2) * chosen for k in range(count)))

    x, at = torch.randn(5, 7), torch.tensor([1, 2])
    gm = mutating(step, (x, at), [0])
    call, given, expected = CpuBackend().compile(gm, (x, at)), x.clone(), x.clone()
    torch.testing.assert_close(call([given, at]), gm(expected, at))
    torch.testing.assert_close(given, expected)
    with pytest.raises(IndexError):
        call([given, at + 9])
    torch.testing.assert_close(given, expected)


def test_the_first_of_several_checks_says_what_is_wrong() -> None:
    x, at = torch.randn(5, 7), torch.tensor([1, 2])
    count = 70  # more launches than are one function
    call = compiled(lambda x, i: tuple(x[i + k - k].sum(1 if k % 2 else 0) for k in range(count)), x, at)
    call(x, at)
    with pytest.raises(IndexError, match="with size 5"):
        call(x, at + 9)


def test_a_run_of_nothing_but_checks() -> None:
    """It takes no tensors: the indices are numbers of the graph's own."""
    x = filled((5, 4), torch.float32)
    for far in (4, 5):
        gm = trace(lambda x, far=far: (x[torch.arange(1, far + 1)], x.cummax(0)[0])[1], (x,))
        call, plan = CpuBackend().compile(gm, (x,)), make_plan(lower_graph(gm, CPU).program, CPU)
        assert not next(step for step in plan.steps if isinstance(step, Run)).buffers
        if far == 4:
            assert torch.equal(call([x])[0], x.cummax(0)[0])
            continue
        with pytest.raises(IndexError, match="out of bounds"):
            call([x])


def test_one_check_for_equal_indices() -> None:
    x, at = torch.randn(5, 7), torch.tensor([1, 2])
    gm = trace(lambda x, i: (x[i] + 1) * (x * 2)[i], (x, at))
    assert sum(d.failure is not None for d in lower_graph(gm, CPU).program.defs.values()) == 1


def test_an_index_is_an_operand_of_the_read() -> None:
    row, column, other = Var("i", 4), Var("j", 6), Var("k", 4)
    inner = Load("indices", (of(row),), "i64")
    read = Load("x", (indirect(inner, 9), of(column)), "f32")
    assert inner in set(walk(read)) and bounds(read.index[0]) == (0, 8)
    moved = substitute(read, {row: of(other), other: of(row)})
    assert moved is Load("x", (indirect(Load("indices", (of(other),), "i64"), 9), of(column)), "f32")
    through = substitute(Index(of(row)), {row: indirect(inner, 4)})
    assert through is Index(indirect(inner, 4)) and inner in set(walk(through))
    with pytest.raises(TypeError, match="i64"):
        indirect(number(1, "i32"), 3)

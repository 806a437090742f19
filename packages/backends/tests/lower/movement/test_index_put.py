"""Elements replaced at indices that tensors hold (`index_put`, `index_copy`): as eager's, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from case_selection.sweeps import examples
from graphs.tracing import mutating, trace
from hypothesis import given, settings
from hypothesis import strategies as st
from lower.movement.index_cases import DTYPES, SHAPES, agree, compiled, drawn_indices, filled

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.plan import make_plan
from framesmith_backends.target import CPU

Tensor = torch.Tensor


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_replaced_by_rows_and_columns(data: st.DataObject) -> None:
    """Of several values for one index the last one stays."""
    shape, dtype, gaps = data.draw(SHAPES), data.draw(st.sampled_from(DTYPES)), data.draw(st.booleans())
    dim, count = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.integers(2, 30))
    size = shape[dim]
    if size == 1:
        return  # the same index for all
    x = filled(shape, dtype)
    if data.draw(st.booleans()):
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    given = tuple(count if k == dim % len(shape) else n for k, n in enumerate(shape))
    indices, source = drawn_indices(data.draw, (count,), 0, size, narrow=False), filled(given, dtype, gaps)
    agree(lambda x, i, s: x.index_copy(dim, i, s), x, indices, source)
    agree(lambda x, i, s: x.index_copy(dim, i[0], s.narrow(dim, 0, 1)), x, indices, source)
    agree(lambda x, i: x.index_fill(dim, i - size, 1), x, indices)
    agree(lambda x, i, s: x.index_fill(dim, i, s.flatten()[0]), x, indices, source)
    smaller = tuple(count if k == dim % len(shape) else data.draw(st.integers(1, n)) for k, n in enumerate(shape))
    own = drawn_indices(data.draw, smaller, 0, size, narrow=False)
    agree(lambda x, i, s: x.scatter(dim, i, s), x, own, source)
    agree(lambda x, i: x.scatter(dim, i, True if dtype == torch.bool else 3), x, own)
    if dtype not in (torch.bool, torch.float16, torch.bfloat16):
        agree(lambda x, i, s: (x * 2).scatter_add(dim, i, s), x, own, source)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_replaced_by_advanced_indices(data: st.DataObject) -> None:
    rows, columns, depth = (data.draw(st.integers(2, 9)) for _ in range(3))
    x = filled((rows, columns, depth), data.draw(st.sampled_from(DTYPES)))
    count = data.draw(st.integers(2, 30))
    i, j = (drawn_indices(data.draw, (count,), -n, n) for n in (rows, columns))
    value, whole = filled((count, depth), x.dtype), filled((count, columns, depth), x.dtype)
    agree(lambda x, i, j, v: x.index_put((i, j), v), x, i, j, value)
    agree(lambda x, i, j, v: x.index_put((i, j), v[:1]), x, i, j, value)
    agree(lambda x, i, v: x.index_put((i,), v), x, i, whole)
    agree(lambda x, i, v: x.index_put((i,), v[0, 0, 0]), x, i, whole)
    agree(lambda x, j, v: torch.ops.aten.index_put(x, [None, j], v), x, j, value[0])
    separate = drawn_indices(data.draw, (data.draw(st.integers(2, 5)), 1), 0, depth)
    agree(lambda x, i, k, v: torch.ops.aten.index_put(x, [i, None, k], v), x, i, separate, whole[0, 0, 0])


def test_indices_in_two_dimensions_are_taken_in_eagers_order() -> None:
    """It goes by strides, of the values first; what is in another order than these stays ATen's."""
    torch.manual_seed(0)
    for tail in ((), (3,), (40,)):
        x, i = torch.zeros(6, *tail), torch.randint(0, 6, (4, 5))
        values, transposed = torch.randn(4, 5, *tail), torch.randn(5, 4, *tail).transpose(0, 1)
        far = torch.randn(*tail, 4, 5).permute(*range(len(tail), len(tail) + 2), *range(len(tail)))
        cases = (
            (i, values),
            (i, far),
            (i, values[:1]),
            (i, values[:, :1]),
            (i, transposed),
            (i.t(), transposed.transpose(0, 1)),
        )
        for k, (indices, value) in enumerate(cases):
            gm = trace(lambda x, i, v: x.index_put((i,), v), (x, indices, value))
            assert [*lower_graph(gm, CPU).notes.values()] == ["indices that ATen takes in another order"] * (k > 3)
            found = CpuBackend().compile(gm, (x, indices, value))([x, indices, value])[0]
            assert torch.equal(found, x.index_put((indices,), value))


def test_replaced_where_a_mask_holds() -> None:
    x, deep, row = filled((6, 5, 4), torch.float32), torch.rand(6, 5) > 0.5, torch.rand(5) > 0.5
    put = torch.ops.aten.index_put
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool):
        y = x.to(dtype)
        agree(lambda y, m: put(y, [m], y[0, 0, 0]), y, deep)
        agree(lambda y, m: put(y.transpose(0, 1), [None, m], y[0, 0]), y, torch.rand(6) > 0.5)
        agree(lambda y, m: put(y, [m], y[:1, 0]), y, deep)
        agree(lambda y, m: put(y, [None, m], y[:, :1]), y, row)
        agree(lambda y, m: put(y.clone(), [None, None, m], y[0, 0, :1]), y, row[:4])


def test_wide_rows_are_replaced_by_many_threads() -> None:
    x, at, source = torch.randn(50, 3001), torch.randperm(50).repeat(8), torch.randn(400, 3001)
    agree(lambda x, i, s: x.scatter(0, i[:, None].expand(s.shape), s), x, at, source)
    agree(lambda x, i, s: x.index_copy(0, i, s), x, at, source)
    own = torch.randint(0, 50, (400, 3001))
    agree(lambda x, i, s: (x.scatter(0, i, s), x.scatter_add(0, i, s)), x, own, source)
    agree(lambda x, i, s: x.scatter(1, i, s), x, torch.randint(0, 3001, (50, 400)), source[:50, :400])


PUT: dict[str, tuple[Callable[..., Tensor], int]] = {
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), -1),
    "index_fill": (lambda x, i, s: x.index_fill(0, i, 2.0), -6),
    "scatter": (lambda x, i, s: x.scatter(0, i[:, None].expand(4, 7), s), -1),
    "scatter in columns": (lambda x, i, s: x.scatter(0, i[:, None] + torch.zeros_like(s, dtype=torch.int64), s), -1),
    "scatter in rows": (lambda x, i, s: x.t().scatter(1, i.expand(7, 4), 3.0), -1),
    "index_put": (lambda x, i, s: x.index_put((i,), s), -6),
    "index_put of elements": (lambda x, i, s: x.index_put((i, i), s[:, 0]), -6),
}


@pytest.mark.parametrize("name", PUT)
def test_writes_out_of_bounds_are_errors(name: str) -> None:
    """Nothing is written there: not even memory that lies beside the result."""
    function, below = PUT[name]
    x, good, source = torch.randn(5, 7), torch.tensor([0, 1, 2, 0]), torch.randn(4, 7)
    call = compiled(function, x, good, source)
    assert torch.equal(call(x, good, source)[0], function(x, good, source))
    for far in (70, 1 << 61, below, -(1 << 61)):
        bad = torch.tensor([0, 1, 2, far])
        with pytest.raises((IndexError, RuntimeError)) as theirs:
            function(x, bad, source)
        with pytest.raises(theirs.type, match=r"out of bounds"):
            call(x, bad, source)


def test_numbers_that_a_type_does_not_hold_are_eagers_errors() -> None:
    at = torch.tensor([1])
    for value, dtype in ((300, torch.uint8), (float("nan"), torch.int8), (1e6, torch.float16), (1e39, torch.float32)):
        x = torch.zeros(3, dtype=dtype)
        notes = lower_graph(trace(lambda x, i, value=value: x.index_fill(0, i, value), (x, at)), CPU).notes
        assert "a number that the type may not hold" in notes.values()
    agree(lambda x, i: x.index_fill(0, i, 2.9) + x.scatter(0, i, -3), torch.zeros(3, dtype=torch.int8), at)
    agree(lambda x, i: x.index_fill(0, i, float("inf")), torch.zeros(3, dtype=torch.float16), at)
    wide = torch.full((), 2.5, dtype=torch.float64)
    notes = lower_graph(trace(lambda x, i, v: x.index_fill(0, i, v), (torch.zeros(3), at, wide)), CPU).notes
    assert "values of another type" in notes.values()


def test_values_are_computed_in_the_kernel_that_writes() -> None:
    x, at, source = torch.randn(50, 30), torch.randint(0, 50, (400,)), torch.randn(400, 30)
    program = lambda x, i, s: torch.zeros_like(x).index_copy(0, i, x[i.flip(0)] * s) + 1  # noqa: E731
    plan = make_plan(lower_graph(trace(program, (x, at, source)), CPU).program, CPU)
    assert sum(any(param.written for param in kernel.params) for kernel in plan.kernels) == 3  # nothing, rows, the rest
    agree(program, x, at, source)
    columns = trace(lambda x, i, s: x.scatter(0, i, s), (x, torch.randint(0, 50, (9, 30)), source))
    kernels = [kernel for kernel in make_plan(lower_graph(columns, CPU).program, CPU).kernels if kernel.updates]
    assert [(len(kernel.checks), kernel.lane in kernel.outer) for kernel in kernels] == [(1, True)]


def test_a_replaced_input_is_written_by_the_call_that_replaces() -> None:
    """In place if nobody else reads the input; else the kernel's result is copied, unless an index is wrong."""
    x, at, source = torch.zeros(5, 3), torch.tensor([0, 1, 1]), torch.arange(9.0).view(3, 3)
    for program in (
        lambda x, i, s: x.index_copy(0, i, s), lambda x, i, s: (x.scatter(0, i[:, None].expand(3, 3), s), x.sum()),
        lambda x, i, s: ((y := x.index_put((i,), s)), y),
    ):  # fmt: skip
        gm = mutating(program, (x, at, source), [0])
        call = CpuBackend().compile(gm, (x, at, source))
        x.zero_()
        call([x, at, source])
        assert x[:3].tolist() == [[0, 1, 2], [6, 7, 8], [0, 0, 0]]
    with pytest.raises(IndexError):
        call([x, at + 4, source])
    assert x[:3].tolist() == [[0, 1, 2], [6, 7, 8], [0, 0, 0]]


REASONS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "one index": (lambda x, i: x[:1].index_add(0, i * 0, x), "same along a dimension"),
    "a factor": (lambda x, i: x.index_add(0, i, x, alpha=2), "a factor"),
    "bools": (lambda x, i: (x > 0).index_put((i,), x > 1, accumulate=True), "bools"),
    "sums where a mask holds": (lambda x, i: x.index_put((i > 1,), x[0], accumulate=True), "masks"),
    "values of each element of a mask": (lambda x, i: x.index_put((x > 2,), x[0, :0]), "no elements"),
    "rows of each element of a mask": (lambda x, i: x.index_put((i > 0,), x[:4]), "each place of a mask"),
    "replaced at one index": (lambda x, i: x[:1].index_copy(0, i * 0, x), "same along a dimension"),
}


@pytest.mark.parametrize("name", REASONS)
def test_updates_that_stay_with_aten(name: str) -> None:
    function, reason = REASONS[name]
    inputs = torch.rand(5, 7), torch.tensor([0, 1, 2, 3, 1])
    gm = trace(function, inputs)
    assert any(reason in note for note in lower_graph(gm, CPU).notes.values())
    assert torch.equal(CpuBackend().compile(gm, inputs)(list(inputs))[0], function(*inputs))


def test_many_single_elements_beside_many_threads() -> None:
    """ATen's threads keep no order, and are faster than one; where order is asked for, there is a kernel."""
    x, indices, values = torch.zeros(1 << 16), torch.randperm(1 << 16)[: 1 << 15], torch.randn(1 << 15)
    graph = trace(lambda a, p, v: a.index_put((p,), v), [x, indices, values])
    threads = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        assert lower_graph(graph, CPU).notes
        torch.use_deterministic_algorithms(True)
        assert not lower_graph(graph, CPU).notes
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    assert not lower_graph(graph, CPU).notes


OF_ANOTHER_TYPE: dict[str, Callable[..., Any]] = {
    "index_put": lambda x, p, v: x.index_put((p,), v),
    "index_put, added": lambda x, p, v: x.index_put((p,), v, accumulate=True),
    "index_copy": lambda x, p, v: x.index_copy(0, p, v),
    "index_add": lambda x, p, v: x.index_add(0, p, v),
    "mask": lambda x, p, v: x.index_put((x[:, 0] > 0,), v[:1]),
}


@pytest.mark.parametrize("name", OF_ANOTHER_TYPE)
def test_values_of_another_type_are_refused_as_in_eager_mode(name: str) -> None:
    function, inputs = OF_ANOTHER_TYPE[name], (torch.randn(9, 3), torch.tensor([1, 5]), torch.randn(2, 3).double())
    with pytest.raises(RuntimeError) as wanted:
        function(*inputs)
    call = CpuBackend().compile(trace(function, inputs), inputs)
    with pytest.raises(RuntimeError) as found:
        call(list(inputs))
    assert str(found.value).split(",")[0] == str(wanted.value).split(",")[0]

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

from framesmith_backends import CpuBackend
from framesmith_backends.ir.expr import Index, Load, indirect, number, substitute, walk
from framesmith_backends.ir.symbolic.index import Var, bounds, of
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.plan import make_plan
from framesmith_backends.schedule.steps import Run
from framesmith_backends.target import GPU

Tensor = torch.Tensor
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool)


LEFT_TO_ATEN = ("a view needed as a tensor", "indices in another order in memory")


def compiled(function: Callable[..., Any], *inputs: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """The function in kernels alone."""
    gm = trace(function, inputs)
    assert not [note for note in lower_graph(gm).notes.values() if not note.startswith(LEFT_TO_ATEN)]
    call = CpuBackend().compile(gm, inputs)
    return lambda *values: call(list(values))


def agree(function: Callable[..., Any], *inputs: Tensor) -> None:
    wanted = in_turn(function, *inputs)
    found = compiled(function, *inputs)(*inputs)
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert (one.dtype, one.shape, steps(one)) == (other.dtype, other.shape, steps(other))
        assert torch.equal(one, other)


def in_turn(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """The result of eager mode on one thread: several ones replace elements in no order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*inputs)
    finally:
        torch.set_num_threads(threads)


def steps(tensor: Tensor) -> list[int]:
    """The strides of the dimensions that have several elements."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def filled(shape: tuple[int, ...], dtype: torch.dtype, gaps: bool = False) -> Tensor:
    count = torch.Size(shape).numel()
    value = (torch.arange(count) * 37 % 101 - (0 if dtype == torch.uint8 else 50)).to(dtype).reshape(shape)
    if not gaps:
        return value
    wider = torch.zeros((*shape[:-1], 2 * shape[-1] + 1), dtype=dtype).transpose(0, -1).contiguous().transpose(0, -1)
    wider[..., 1::2] = value
    return wider[..., 1::2]


SIZES = st.integers(1, 5) | st.sampled_from((17, 40))
SHAPES = st.lists(SIZES, min_size=1, max_size=3).map(tuple)


def drawn_indices(draw: st.DrawFn, shape: tuple[int, ...], low: int, high: int, narrow: bool = True) -> Tensor:
    seed = draw(st.integers(0, 1000))
    dtype = draw(st.sampled_from((torch.int64, torch.int32))) if narrow else torch.int64
    found = torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return found.t().contiguous().t() if len(shape) == 2 and draw(st.booleans()) else found


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


def test_what_is_read_is_fused() -> None:
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
        plan = make_plan(lower_graph(gm).program)
        assert sum(any(param.written for param in kernel.params) for kernel in plan.kernels) == 1


def test_indices_are_found_by_reductions() -> None:
    x, y = filled((9, 40), torch.float32), filled((6, 9), torch.float32)
    agree(lambda x, y: x[y.argmax(1)] + 1, x, y)
    agree(lambda x, y: x.gather(1, y.sum(1, keepdim=True).long().abs() % 40), x[:6], y)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.int8], ids=str)
def test_each_lane_has_its_reductions_place(dtype: torch.dtype) -> None:
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
def test_what_lies_outside_is_an_error(name: str) -> None:
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
    runs = [step for step in make_plan(lower_graph(gm).program).steps if isinstance(step, Run)]
    assert [any(kernel.checks for kernel in run.kernels) for run in runs] == [True, False]
    call([x, table, at])
    assert torch.equal(x, torch.ones(4, 3))
    at[3] = 5
    with pytest.raises(IndexError):
        call([x, table, at])
    assert torch.equal(x, torch.ones(4, 3))


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
        call, plan = CpuBackend().compile(gm, (x,)), make_plan(lower_graph(gm).program)
        assert not next(step for step in plan.steps if isinstance(step, Run)).buffers
        if far == 4:
            assert torch.equal(call([x])[0], x.cummax(0)[0])
            continue
        with pytest.raises(IndexError, match="out of bounds"):
            call([x])


def test_one_check_for_equal_indices() -> None:
    x, at = torch.randn(5, 7), torch.tensor([1, 2])
    gm = trace(lambda x, i: (x[i] + 1) * (x * 2)[i], (x, at))
    assert sum(d.failure is not None for d in lower_graph(gm).program.defs.values()) == 1


ADDED = (torch.float32, torch.float64, torch.int64, torch.uint8)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_sums_by_rows_and_columns(data: st.DataObject) -> None:
    shape, dtype = data.draw(SHAPES), data.draw(st.sampled_from(ADDED))
    x, dim = filled(shape, dtype), data.draw(st.integers(-len(shape), len(shape) - 1))
    count, size = data.draw(st.integers(2, 30)), shape[dim]
    if size == 1:
        return  # the same place for all
    given = tuple(count if k == dim % len(shape) else n for k, n in enumerate(shape))
    source = filled(given, dtype, data.draw(st.booleans()))
    indices = drawn_indices(data.draw, (count,), 0, size)
    agree(lambda x, i, s: x.index_add(dim, i, s * 2), x, indices, source)
    if dim % len(shape) == len(shape) - 1:
        own = drawn_indices(data.draw, given, 0, size, narrow=False)
        agree(lambda x, i, s: (x * 2).scatter_add(dim, i, s), x, own, source)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_sums_by_advanced_indices(data: st.DataObject) -> None:
    rows, columns, depth = (data.draw(st.integers(2, 9)) for _ in range(3))
    x = filled((rows, columns, depth), data.draw(st.sampled_from((*ADDED, torch.bfloat16, torch.float16))))
    count = data.draw(st.integers(2, 30))
    i, j = (drawn_indices(data.draw, (count,), -n, n) for n in (rows, columns))
    value, whole = filled((count, depth), x.dtype), filled((count, columns, depth), x.dtype)
    agree(lambda x, i, j, v: x.index_put((i, j), v, accumulate=True), x, i, j, value)
    agree(lambda x, i, v: x.index_put((i,), v, accumulate=True), x, i, whole)
    agree(lambda x, j, v: torch.ops.aten.index_put(x, [None, j], v, True), x, j, value)


#: Indices of which fusion leaves nothing that depends on the point, or on one of its variables alone.
COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "the first": lambda i: torch.zeros_like(i),
    "the second": lambda i: torch.full_like(i, 1),
    "the number of a point": lambda i: torch.arange(i.numel()).view(i.shape) // 3 % 2,
    "nearly the first": lambda i: i * 0 + 1,
}


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("shape", [(4,), (40,), (4, 4), (33, 7), (3, 2, 5, 5), (300, 9)], ids=str)
def test_sums_at_indices_that_are_computed(name: str, shape: tuple[int, ...]) -> None:
    place, x = COMPUTED[name], filled(shape, torch.float32)
    points, last = torch.zeros(shape, dtype=torch.int64), len(shape) - 1
    agree(lambda x, i: x.scatter_add(last, place(i), x * 2), x, points)
    for dim, count in enumerate(shape):
        agree(lambda x, i, dim=dim: x.index_add(dim, place(i), x * 2), x, torch.zeros(count, dtype=torch.int64))
    agree(lambda x, i: x.index_put((place(i),), x * 3, accumulate=True), x, torch.zeros(shape[0], dtype=torch.int64))
    grad = filled((*shape, 20), torch.float32)
    agree(lambda g, i: torch.ops.aten.embedding_dense_backward(g, place(i), 3, -1, False), grad, points)


@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_embeddings(dtype: torch.dtype, padding: int) -> None:
    def gradient(g: Tensor, i: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(g * 2, i, 11, padding, False)

    indices, grad = torch.randint(0, 11, (7, 9)), torch.randn(7, 9, 70).to(dtype)
    agree(gradient, grad, indices)
    indices[2, 3], indices[1, 1] = -7, 11
    assert torch.equal(compiled(gradient, grad, indices)(grad, indices)[0], gradient(grad, indices))


def test_wide_rows_are_shared_among_threads() -> None:
    x, at, source = torch.randn(50, 3001), torch.randint(0, 50, (400,)), torch.randn(400, 3001)
    agree(lambda x, i, s: x.index_add(0, i, s), x, at, source)
    agree(lambda x, i, s: x.scatter_add(1, i, s), x, torch.randint(0, 3001, (50, 700)), source[:50, :700])


SUMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "scatter_add": lambda x, i, s: x.scatter_add(1, i.expand(5, 4), s[:, :4].expand(5, 4)),
    "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True),
    "index_put of elements": lambda x, i, s: x.index_put((i, i), s[:, 0], accumulate=True),
}


@pytest.mark.parametrize("name", SUMS)
def test_what_is_added_outside_is_an_error(name: str) -> None:
    function = SUMS[name]
    x, good, source = torch.randn(5, 7), torch.tensor([0, 1, 2, 0]), torch.randn(4, 7)
    if name == "scatter_add":
        source = source[:1]
    call = compiled(function, x, good, source)
    assert torch.equal(call(x, good, source)[0], function(x, good, source))
    bad = torch.tensor([0, 1, 2, 70])
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        function(x, bad, source)
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)") as ours:
        call(x, bad, source)
    assert ours.type is theirs.type or name == "index_add"  # which eager has in two variants, by the layout


def test_what_is_added_is_computed_where_it_is_added() -> None:
    x, at, source = torch.randn(50, 30), torch.randint(0, 50, (400,)), torch.randn(400, 30)
    gm = trace(lambda x, i, s: torch.zeros_like(x).index_add(0, i, x[i.flip(0)] * s) + 1, (x, at, source))
    plan = make_plan(lower_graph(gm).program)
    assert sum(any(param.written for param in kernel.params) for kernel in plan.kernels) == 3  # nothing, sums, the rest
    columns = trace(lambda x, i, s: x.scatter_add(1, i, s), (x, torch.randint(0, 30, (50, 9)), torch.randn(50, 9)))
    kernels = make_plan(lower_graph(columns).program).kernels
    assert [len(kernel.checks) for kernel in kernels if kernel.updates] == [1]


HALVES = (torch.bfloat16, torch.float16)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_sums_of_low_precision_types_are_rounded_as_eagers_are(data: st.DataObject) -> None:
    """At each addition, or once for all sums along the first and the last of several dimensions."""
    shape, dtype = data.draw(SHAPES), data.draw(st.sampled_from(HALVES))
    dim, count = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.integers(2, 90))
    size = shape[dim]
    if size == 1:
        return
    given = tuple(count if k == dim % len(shape) else n for k, n in enumerate(shape))
    x, source = torch.randn(shape).to(dtype), torch.randn(given).to(dtype)
    if data.draw(st.booleans()):
        x, source = (one.transpose(0, -1).contiguous().transpose(0, -1) for one in (x, source))
    agree(lambda x, i, s: x.index_add(dim, i, s) + 1, x, drawn_indices(data.draw, (count,), 0, size), source)
    own = drawn_indices(data.draw, given, 0, size, narrow=False)
    agree(lambda x, i, s: (x * 2).scatter_add(dim, i, s), x, own, source)
    indices = drawn_indices(data.draw, (count,), 0, size, narrow=False)
    along = indices.view([count if k == dim % len(shape) else 1 for k in range(len(shape))])
    agree(lambda x, i, s: x.scatter_add(dim, i.expand(s.shape), s), x, along, source)


def test_wide_rows_of_low_precision_types_are_added_up_by_aten() -> None:
    x, at = torch.zeros(1024, 1024, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int64)
    for inputs, left in (((x, at, x[:3]), 1), ((x[:1000], at, x[:3]), 0), ((x.view(-1, 256), at, x[:3, :256]), 0)):
        notes = lower_graph(trace(lambda x, i, s: x.index_add(0, i, s), inputs)).notes
        assert len(notes) == left
    own = torch.zeros(3, 1024, dtype=torch.int64)
    assert not lower_graph(trace(lambda x, i, s: x.scatter_add(0, i, s), (x, own, x[:3]))).notes


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_replaced_by_rows_and_columns(data: st.DataObject) -> None:
    """Of several for one place the last one is there."""
    shape, dtype, gaps = data.draw(SHAPES), data.draw(st.sampled_from(DTYPES)), data.draw(st.booleans())
    dim, count = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.integers(2, 30))
    size = shape[dim]
    if size == 1:
        return  # the same place for all
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
            assert [*lower_graph(gm).notes.values()] == ["indices that ATen takes in another order"] * (k > 3)
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
def test_what_is_replaced_outside_is_an_error(name: str) -> None:
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
        notes = lower_graph(trace(lambda x, i, value=value: x.index_fill(0, i, value), (x, at))).notes
        assert "a number that the type may not hold" in notes.values()
    agree(lambda x, i: x.index_fill(0, i, 2.9) + x.scatter(0, i, -3), torch.zeros(3, dtype=torch.int8), at)
    agree(lambda x, i: x.index_fill(0, i, float("inf")), torch.zeros(3, dtype=torch.float16), at)
    wide = torch.full((), 2.5, dtype=torch.float64)
    notes = lower_graph(trace(lambda x, i, v: x.index_fill(0, i, v), (torch.zeros(3), at, wide))).notes
    assert "a number of another type" in notes.values()


def test_what_replaces_is_computed_where_it_is_written() -> None:
    x, at, source = torch.randn(50, 30), torch.randint(0, 50, (400,)), torch.randn(400, 30)
    program = lambda x, i, s: torch.zeros_like(x).index_copy(0, i, x[i.flip(0)] * s) + 1  # noqa: E731
    plan = make_plan(lower_graph(trace(program, (x, at, source))).program)
    assert sum(any(param.written for param in kernel.params) for kernel in plan.kernels) == 3  # nothing, rows, the rest
    agree(program, x, at, source)
    columns = trace(lambda x, i, s: x.scatter(0, i, s), (x, torch.randint(0, 50, (9, 30)), source))
    kernels = [kernel for kernel in make_plan(lower_graph(columns).program).kernels if kernel.updates]
    assert [(len(kernel.checks), kernel.lane in kernel.outer) for kernel in kernels] == [(1, True)]


def test_a_replaced_input_is_written_by_the_call_that_replaces() -> None:
    """In place if nobody else reads the input; else the kernel's result is copied, unless a place is wrong."""
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
    "one place": (lambda x, i: x[:1].index_add(0, i * 0, x), "same along a dimension"),
    "a factor": (lambda x, i: x.index_add(0, i, x, alpha=2), "a factor"),
    "bools": (lambda x, i: (x > 0).index_put((i,), x > 1, accumulate=True), "bools"),
    "sums where a mask holds": (lambda x, i: x.index_put((i > 1,), x[0], accumulate=True), "masks"),
    "values of each place of a mask": (lambda x, i: x.index_put((x > 2,), x[0, :0]), "no elements"),
    "rows of each place of a mask": (lambda x, i: x.index_put((i > 0,), x[:4]), "each place of a mask"),
    "replaced at one place": (lambda x, i: x[:1].index_copy(0, i * 0, x), "same along a dimension"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_left_to_aten(name: str) -> None:
    function, reason = REASONS[name]
    inputs = torch.rand(5, 7), torch.tensor([0, 1, 2, 3, 1])
    gm = trace(function, inputs)
    assert any(reason in note for note in lower_graph(gm).notes.values())
    assert torch.equal(CpuBackend().compile(gm, inputs)(list(inputs))[0], function(*inputs))


def test_threads_in_no_order_add_what_eagers_do_in_no_order() -> None:
    """Sums of floats that eager rounds the same each time, of low-precision types and under determinism stay ATen's."""

    def declined(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> bool:
        notes = lower_graph(trace(function, inputs), target=GPU).notes
        return any("no order" in note for note in notes.values())

    indices = torch.tensor([0, 1, 2, 3, 1])
    floats, whole = torch.rand(5, 7), torch.ones(5, 7, dtype=torch.int64)
    assert not declined(lambda x, i: x.index_add(0, i, x), floats, indices)
    assert declined(lambda x, i: x.index_put((i,), x, accumulate=True), floats, indices)
    assert not declined(lambda x, i: x.index_put((i,), x, accumulate=True), whole, indices)
    assert declined(lambda x, i: x.to(torch.int8).index_add(0, i, x.to(torch.int8)), whole, indices)
    assert declined(lambda x, i: x.bfloat16().index_add(0, i, x.bfloat16()), floats, indices)
    assert declined(lambda x, i: x.index_copy(0, i, x), floats, indices)
    assert declined(lambda x, i: x.index_fill(0, i, 2), floats, indices)
    assert declined(lambda x, i: x.index_put((i,), x), floats, indices)
    assert declined(lambda x, i: x.scatter(0, i[:, None], x), floats, indices)
    torch.use_deterministic_algorithms(True)
    try:
        assert declined(lambda x, i: x.index_add(0, i, x), floats, indices)
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_updated_input_is_written_at_the_end() -> None:
    x, at, source = torch.zeros(5, 3), torch.tensor([0, 1, 1]), torch.ones(3, 3)
    gm = mutating(lambda x, i, s: x.index_add(0, i, s), (x, at, source), [0])
    call = CpuBackend().compile(gm, (x, at, source))
    call([x, at, source])
    assert x[:, 0].tolist() == [1, 2, 0, 0, 0]
    with pytest.raises(IndexError):
        call([x, at + 4, source])
    assert x[:, 0].tolist() == [1, 2, 0, 0, 0]


def test_a_place_is_an_operand_of_the_read() -> None:
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


def test_many_single_elements_beside_many_threads() -> None:
    """ATen's threads keep no order, and are faster than one; where order is asked for, there is a kernel."""
    x, indices, values = torch.zeros(1 << 16), torch.randperm(1 << 16)[: 1 << 15], torch.randn(1 << 15)
    graph = trace(lambda a, p, v: a.index_put((p,), v), [x, indices, values])
    threads = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        assert lower_graph(graph).notes
        torch.use_deterministic_algorithms(True)
        assert not lower_graph(graph).notes
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    assert not lower_graph(graph).notes


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


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_gradients_of_bags_of_one_length_are_kernels(mode: str, length: int) -> None:
    def gradient(g: Tensor, i: Tensor) -> Tensor:
        starts = torch.arange(0, 20 * length, length)
        kind = ["sum", "mean"].index(mode)
        bags, sizes = torch.arange(20).repeat_interleave(length), torch.full((20,), length)
        return torch.ops.aten._embedding_bag_backward(g, i, starts, bags, sizes, sizes, 11, False, kind, False, None)

    g, i = torch.randn(20, 33), torch.randint(0, 11, (20 * length,))
    gm = trace(gradient, (g, i))
    assert not any("aten._embedding_bag_backward" in step for step in CpuBackend().explain(gm).plan.text().splitlines())
    (found,) = CpuBackend().compile(gm, (g, i))([g, i])
    torch.testing.assert_close(found, gradient(g, i))

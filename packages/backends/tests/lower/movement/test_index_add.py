"""Sums at indices that tensors hold (`index_add`, `scatter_add`, embeddings' gradients): as eager's, and its errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from case_selection.sweeps import examples
from graphs.tracing import mutating, trace
from hypothesis import given, settings
from hypothesis import strategies as st
from lower.movement.index_cases import SHAPES, agree, compiled, drawn_indices, filled

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.plan import make_plan
from framesmith_backends.target import CPU, GPU

Tensor = torch.Tensor


ADDED = (torch.float32, torch.float64, torch.int64, torch.uint8)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_sums_by_rows_and_columns(data: st.DataObject) -> None:
    shape, dtype = data.draw(SHAPES), data.draw(st.sampled_from(ADDED))
    x, dim = filled(shape, dtype), data.draw(st.integers(-len(shape), len(shape) - 1))
    count, size = data.draw(st.integers(2, 30)), shape[dim]
    if size == 1:
        return  # the same index for all
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
    computed, x = COMPUTED[name], filled(shape, torch.float32)
    points, last = torch.zeros(shape, dtype=torch.int64), len(shape) - 1
    agree(lambda x, i: x.scatter_add(last, computed(i), x * 2), x, points)
    for dim, count in enumerate(shape):
        agree(lambda x, i, dim=dim: x.index_add(dim, computed(i), x * 2), x, torch.zeros(count, dtype=torch.int64))
    agree(lambda x, i: x.index_put((computed(i),), x * 3, accumulate=True), x, torch.zeros(shape[0], dtype=torch.int64))
    grad = filled((*shape, 20), torch.float32)
    agree(lambda g, i: torch.ops.aten.embedding_dense_backward(g, computed(i), 3, -1, False), grad, points)


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
def test_sums_out_of_bounds_are_errors(name: str) -> None:
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


def test_sources_are_computed_in_the_kernel_that_adds() -> None:
    x, at, source = torch.randn(50, 30), torch.randint(0, 50, (400,)), torch.randn(400, 30)
    gm = trace(lambda x, i, s: torch.zeros_like(x).index_add(0, i, x[i.flip(0)] * s) + 1, (x, at, source))
    plan = make_plan(lower_graph(gm, CPU).program, CPU)
    assert sum(any(param.written for param in kernel.params) for kernel in plan.kernels) == 3  # nothing, sums, the rest
    columns = trace(lambda x, i, s: x.scatter_add(1, i, s), (x, torch.randint(0, 30, (50, 9)), torch.randn(50, 9)))
    kernels = make_plan(lower_graph(columns, CPU).program, CPU).kernels
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
        notes = lower_graph(trace(lambda x, i, s: x.index_add(0, i, s), inputs), CPU).notes
        assert len(notes) == left
    own = torch.zeros(3, 1024, dtype=torch.int64)
    assert not lower_graph(trace(lambda x, i, s: x.scatter_add(0, i, s), (x, own, x[:3])), CPU).notes


def test_threads_in_no_order_add_what_eagers_do_in_no_order() -> None:
    """Sums of floats that eager rounds the same each time, of low-precision types and under determinism stay ATen's."""

    def declined(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> bool:
        notes = lower_graph(trace(function, inputs), GPU).notes
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

"""Facts asked of graph nodes."""

from __future__ import annotations

import operator

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from framesmith_aten.graphs import nodes

aten = torch.ops.aten


def call(graph, target, *args):
    node = graph.call_function(target, args)
    values = nodes.value_of(args)
    node.meta["val"] = target(*values)
    return node


def graph_of(value):
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = value
    return graph, x


def test_views_are_followed_to_their_root():
    graph, x = graph_of(torch.zeros(4, 6))
    split = call(graph, aten.split.Tensor, x, 2)
    part = call(graph, operator.getitem, split, 1)
    flat = call(graph, aten._unsafe_view.default, part, [12])
    assert nodes.view_source(part) is x and nodes.view_root(flat) is x
    total = call(graph, aten.add.Tensor, flat, 1)
    assert nodes.view_source(total) is None and nodes.view_root(total) is total


def some_views(data, graph, node):
    """A chain of views of a node, as somebody draws it."""
    for _ in range(data.draw(st.integers(0, 3))):
        value = node.meta["val"]
        if value.dim() == 0:
            break
        dim = data.draw(st.integers(-value.dim(), value.dim() - 1))
        length = value.shape[dim]
        kind = data.draw(st.sampled_from(["slice", "select", "turn"] if length else ["slice", "turn"]))
        if kind == "turn":
            node = call(graph, aten.transpose.int, node, dim, 0)
        elif kind == "select":
            node = call(graph, aten.select.int, node, dim, data.draw(st.integers(-length, length - 1)))
        else:
            bounds = [data.draw(st.none() | st.integers(-length - 1, length + 1)) for _ in range(2)]
            node = call(graph, aten.slice.Tensor, node, dim, *bounds, data.draw(st.integers(1, 3)))
    return node


@given(st.data())
def test_disjoint_views_show_no_element_in_common(data):
    graph, x = graph_of(torch.arange(24).view(2, 3, 4))
    first, second = (some_views(data, graph, x) for _ in range(2))
    if nodes.are_disjoint(first, second):
        # Contiguous: of some strides torch asks for a view that there is none of.
        assert not torch.isin(first.meta["val"].contiguous(), second.meta["val"].contiguous()).any()
    assert nodes.are_disjoint(first, second) == nodes.are_disjoint(second, first)


def test_parts_are_disjoint():
    graph, x = graph_of(torch.arange(24).view(4, 6))
    turned = call(graph, aten.transpose.int, x, 0, 1)
    halves = [call(graph, aten.slice.Tensor, turned, 0, *bounds) for bounds in ((None, 3), (3, None))]
    flat = [call(graph, aten.transpose.int, half, 0, 1) for half in halves]
    rows = [call(graph, aten.select.int, x, dim, at) for dim, at in ((0, 1), (0, 2), (1, 1))]
    split = call(graph, aten.split.Tensor, x, 2)
    parts = [call(graph, operator.getitem, split, at) for at in (0, 1)]
    assert all(nodes.are_disjoint(*pair) for pair in (halves, flat, rows[:2], parts))
    assert not any(nodes.are_disjoint(*pair) for pair in (rows[1:], (x, rows[0]), (parts[0], parts[0]), (x, x)))


def test_parts_of_symbolic_lengths_are_disjoint_where_that_is_known():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    fake = mode.from_tensor(torch.zeros(7, 3), symbolic_context=context)
    graph, x = graph_of(fake)
    length = fake.shape[1]
    bounds = [(0, length), (length, 2 * length), (1, length)]
    parts = [call(graph, aten.slice.Tensor, x, 0, *pair) for pair in bounds]
    assert nodes.are_disjoint(*parts[:2]) and nodes.are_disjoint(*parts[1:])
    assert not nodes.are_disjoint(parts[0], parts[2])


def test_purity_and_failure():
    graph, x = graph_of(torch.arange(4))
    assert nodes.is_pure(call(graph, aten.neg.default, x))
    assert not nodes.is_pure(call(graph, aten.rand_like.default, call(graph, aten.to.dtype, x, torch.float32)))
    assert nodes.may_fail(call(graph, aten.index_select.default, x, 0, x))
    assert not nodes.may_fail(x) and not nodes.may_fail(call(graph, aten.neg.default, x))


def test_bytes():
    assert nodes.tensor_bytes([torch.zeros(2), (torch.zeros(3, dtype=torch.int8), None)]) == 11

"""Facts asked of graph nodes."""

from __future__ import annotations

import operator

import torch
from torch import fx

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


def test_purity_and_failure():
    graph, x = graph_of(torch.arange(4))
    assert nodes.is_pure(call(graph, aten.neg.default, x))
    assert not nodes.is_pure(call(graph, aten.rand_like.default, call(graph, aten.to.dtype, x, torch.float32)))
    assert nodes.may_fail(call(graph, aten.index_select.default, x, 0, x))
    assert not nodes.may_fail(x) and not nodes.may_fail(call(graph, aten.neg.default, x))


def test_bytes():
    assert nodes.tensor_bytes([torch.zeros(2), (torch.zeros(3, dtype=torch.int8), None)]) == 11

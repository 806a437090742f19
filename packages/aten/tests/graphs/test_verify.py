"""Graphs that backends must not get are found, and the fault is named."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from framesmith_aten.errors import GraphInvariantError
from framesmith_aten.graphs.verify import verify

aten = torch.ops.aten


def test_verify_names_the_fault():
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(2)
    y = graph.call_function(aten.add_.Tensor, (x, 1))
    with pytest.raises(GraphInvariantError, match=r'node add__tensor: has no meta\["val"\]'):
        graph.output((y,))
        verify(graph)
    y.meta["val"] = torch.zeros(2)
    with pytest.raises(GraphInvariantError, match="mutates"):
        verify(graph)
    y.target = torch.add
    with pytest.raises(GraphInvariantError, match="not an ATen overload"):
        verify(graph)


def test_verify_reads_after_write():
    graph = fx.Graph()
    x = graph.placeholder("x")
    write = graph.call_function(aten.copy_.default, (x, x))
    y = graph.call_function(aten.neg.default, (x,))
    graph.output((y,))
    for node in (x, write, y):
        node.meta["val"] = torch.zeros(2)
    with pytest.raises(GraphInvariantError, match="reads x after copy_"):
        verify(graph)

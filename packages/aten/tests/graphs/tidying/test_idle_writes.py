"""Writes that `y[1:] += x` leaves in a graph beside the sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx

from framesmith_aten.graphs.tidying.cleanup import canonicalise, eliminate_dead, merge_equal
from framesmith_aten.graphs.tidying.idle_writes import drop_idle_writes
from framesmith_aten.operators import op_name

aten = torch.ops.aten
Build = Callable[[fx.Graph, fx.Node], fx.Node]


def names_left(build: Build, *shape: int) -> list[str]:
    """The operators left of a graph of one input, whose nodes have fakes' stand-ins as values."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(shape)
    graph.output((build(graph, x),))
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta["val"] = node.target(*fx.map_arg(node.args, lambda one: one.meta["val"]))
    canonicalise(graph)
    merge_equal(graph)
    drop_idle_writes(graph)
    eliminate_dead(graph)
    return [op_name(node.target) for node in graph.nodes if node.op == "call_function"]


def added_to_a_part(graph: fx.Graph, x: fx.Node) -> fx.Node:
    base = graph.call_function(aten.clone.default, (x,))
    part = graph.call_function(aten.slice.Tensor, (base, 0, 1, 9))
    more = graph.call_function(aten.add.Tensor, (part, 1))
    written = graph.call_function(aten.slice_scatter.default, (base, more, 0, 1, 9))
    again = graph.call_function(aten.slice.Tensor, (written, 0, 1, 9))
    copy = graph.call_function(aten.copy.default, (again, again))
    return graph.call_function(aten.slice_scatter.default, (written, copy, 0, 1, 9))


def copy_that_is_the_result(graph: fx.Graph, x: fx.Node) -> fx.Node:
    return graph.call_function(aten.copy.default, (x, x))


def part_of_an_input(graph: fx.Graph, x: fx.Node) -> fx.Node:
    part = graph.call_function(aten.slice.Tensor, (x, 0, 1, 9))
    return graph.call_function(aten.slice_scatter.default, (x, part, 0, 1, 9))


def another_part(graph: fx.Graph, x: fx.Node) -> fx.Node:
    base = graph.call_function(aten.clone.default, (x,))
    part = graph.call_function(aten.slice.Tensor, (base, 0, 0, 2))
    return graph.call_function(aten.slice_scatter.default, (base, part, 0, 1, 3))


def copy_to_another_type(graph: fx.Graph, x: fx.Node) -> fx.Node:
    frame = graph.call_function(aten.new_full.default, (x, [4, 3], 0), {})
    half = graph.call_function(aten.to.dtype, (frame, torch.float16))
    copy = graph.call_function(aten.copy.default, (half, x))
    return graph.call_function(aten.add.Tensor, (copy, 1))


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (added_to_a_part, ["clone", "slice", "add", "slice_scatter"]),
        (copy_that_is_the_result, ["copy"]),
        (part_of_an_input, ["slice", "slice_scatter"]),
        (another_part, ["clone", "slice", "slice_scatter"]),
        (copy_to_another_type, ["new_full", "to", "copy", "add"]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_is_left(build: Build, left: list[str]) -> None:
    assert names_left(build, 4, 3) == left

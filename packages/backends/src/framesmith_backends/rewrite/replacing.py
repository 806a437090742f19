"""Copies of graphs with other calls in the place of some nodes, and calls written into a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from framesmith_guards.torch_adapter import OpOverload

Copies = dict[fx.Node, fx.Node]
#: Writes into the new graph the node's substitute, and returns it; None where nothing does, or `copies` has it already.
Write = Callable[[fx.Graph, fx.Node, Copies], fx.Node | None]


def replaced(graph: fx.Graph, instead: Mapping[fx.Node, Write]) -> fx.Graph:
    """A copy of the graph, but for what is written instead of these nodes.

    `copies` are what stands for the nodes met so far. Nodes to come that are there are not met again.
    """
    new = fx.Graph()
    copies: Copies = {}
    for node in graph.nodes:
        if node in copies:
            continue
        made = instead[node](new, node, copies) if node in instead else new.node_copy(node, copies.__getitem__)
        if made is not None:
            copies[node] = made
    return new


def call(graph: fx.Graph, meta: Mapping[str, Any], target: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
    """Write a call with this `meta`, and the value that it has for its operands' values; return its node."""
    made = graph.call_function(target, args, kwargs)
    values: Any = fx.map_arg(args, lambda n: n.meta["val"])
    made.meta = {**meta, "val": target(*values, **kwargs)}
    return made


def dropped(new: fx.Graph, node: fx.Node, copies: Copies) -> None:
    """Nothing stands for a node that nobody reads."""
    return


def erase_unread(graph: fx.Graph, where: Callable[[fx.Node], bool]) -> None:
    """Drop nodes of this kind that nobody reads any more."""
    for node in reversed(graph.nodes):
        if not node.users and where(node):
            graph.erase_node(node)

"""Removes writes into parts of tensors that change nothing."""

from __future__ import annotations

import torch
from torch import fx

from framesmith_aten.graphs.nodes import is_pure
from framesmith_aten.graphs.tidying.cleanup import element_type, key_of
from framesmith_aten.operators import is_view, view_written
from framesmith_aten.symbolic import all_equal
from framesmith_guards.torch_adapter import aten


def drop_idle_writes(graph: fx.Graph) -> None:
    """Remove copies equal to their source, and writes of a part onto itself.

    Statements like `y[1:] += 1` end with one: the result of `+=` is assigned to the same part again.
    """
    for node in graph.nodes:
        same = _same_as(node) if node.op == "call_function" else None
        if same is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _same_as(node: fx.Node) -> fx.Node | None:
    """Return the operand that the node returns unchanged, or None."""
    if node.target is aten.copy.default:
        source = node.args[1]
        if isinstance(source, fx.Node) and _is_only_read(node) and _copies_as_it_is(node, source):
            return source
    return _written_onto_itself(node)


def _copies_as_it_is(node: fx.Node, source: fx.Node) -> bool:
    """Whether a copy changes neither type nor shape, nor strides where they matter: not where they are only written."""
    one, other = node.meta["val"], source.meta["val"]
    if one.layout is not torch.strided or one.device != other.device or element_type(one) != element_type(other):
        return False
    if len(one.shape) != len(other.shape) or not all_equal(one.shape, other.shape):
        return False
    written = all(view_written(user.target) is not None and node is not user.args[0] for user in node.users)
    return written or all_equal(one.stride(), other.stride())


def _is_only_read(node: fx.Node) -> bool:
    """Whether the result's memory goes nowhere that needs memory of its own."""
    return all(user.op == "call_function" and is_pure(user) and not is_view(user.target) for user in node.users)


def _written_onto_itself(node: fx.Node) -> fx.Node | None:
    """Return the tensor of which the node writes a part onto the same part, or None.

    A result that leaves the graph keeps memory of its own, separate from inputs and views.
    """
    view = view_written(node.target)
    base, part = (*node.args, None, None)[:2]
    if view is None or not isinstance(base, fx.Node) or not isinstance(part, fx.Node) or part.target is not view:
        return None
    if not _is_only_read(node) and (base.op != "call_function" or is_view(base.target)):
        return None
    same = key_of((base, *node.args[2:])) == key_of(part.args) and key_of(node.kwargs) == key_of(part.kwargs)
    return base if same else None

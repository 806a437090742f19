"""Whether a graph that fails on its data can be undone, so that its frame may begin again; see docs/design/0006."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from framesmith_aten.layouts import share_storage
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.builder import effects_of

if TYPE_CHECKING:
    from torch import fx

    from framesmith_dynamo.graph.builder import GraphBuilder

CANNOT_UNDO = register_break(
    "cannot-undo",
    what="one graph would do what cannot be undone, and hold another operation that can fail on its data",
    why="a graph that fails is run again as plain Python; an input's history cannot be put back, nor what an operator "
    "does outside of tensors",
    hint="change the input in place, or call the operator, before or after a call of its own",
)


def check_undoing(builder: GraphBuilder, node: fx.Node, name: str) -> None:
    """Break before a call with which the graph could fail after it did what cannot be undone.

    An operator that acts outside of tensors can fail, but others of its kind may stand beside it.
    """
    builder.lasts |= _lasts(builder, node)
    if sum((builder.may_fail, builder.lasts, builder.acts_elsewhere)) > 1:
        raise GraphBreak(CANNOT_UNDO, name)


def _lasts(builder: GraphBuilder, node: fx.Node) -> bool:
    """Whether the call changes more of an input than its elements: the history that autograd keeps of it."""
    changed = [one for one in effects_of(node).written if one.requires_grad] if torch.is_grad_enabled() else []
    return any(share_storage(one, ref.fake) for one in changed for ref in builder.inputs)

"""Whether a graph that fails on its data can be rolled back, so that its frame may restart.

See docs/design/frontend/0006-failed-graphs-leave-no-effects.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from framesmith_aten.layouts import share_storage
from framesmith_aten.recording import effects_of
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from torch import fx

    from framesmith_dynamo.graph.builder import GraphBuilder, TensorRef
    from framesmith_dynamo.values.base import Tracer

CANNOT_ROLL_BACK = register_break(
    "cannot-undo",
    what="one graph would have an effect that cannot be rolled back, and another operation that can fail on its data",
    why="the frame of a failed graph is run again eagerly; an input's history cannot be restored, "
    "nor the effects of an "
    "operator outside of tensors",
    hint="change the input in place, or call the operator, before or after a call of its own",
)


def check_rollback(builder: GraphBuilder, node: fx.Node, name: str) -> None:
    """Break before a call with which the graph could fail after an effect that cannot be rolled back.

    An operator with effects outside of tensors can fail, but several of them may follow each other. The runtime
    assertions of a call can fail as well: they are checked after the call.
    """
    builder.is_irreversible |= bool(changed_histories(builder, node))
    check_failure(builder, name)


def check_failure(builder: GraphBuilder, name: str) -> None:
    """Break where the graph, which the program's assertions may end, has an effect that cannot be rolled back."""
    builder.may_fail |= builder.has_assumed
    if sum((builder.may_fail, builder.is_irreversible, builder.has_external_effects)) > 1:
        raise GraphBreak(CANNOT_ROLL_BACK, name)


def changed_histories(builder: GraphBuilder, node: fx.Node) -> list[TensorRef]:
    """Return the inputs whose autograd history the call changes, not only their elements."""
    changed = [one for one in effects_of(node).written if one.requires_grad] if torch.is_grad_enabled() else []
    return [ref for ref in builder.inputs if any(share_storage(one, ref.fake) for one in changed)] if changed else []


def guard_change(tr: Tracer, ref: TensorRef) -> None:
    """Guard the properties on which autograd decides about a write: the tensor is no leaf and no view of one."""
    assert ref.source is not None, "an input has a source"
    assert ref.real is not None, "an input is a tensor of the call"
    base = AttrSource(ref.source, "_base")
    viewed = ref.real._base
    tr.guard(base, "NONE_MATCH" if viewed is None else "NOT_NONE")
    written, real = (ref.source, ref.real) if viewed is None else (base, viewed)
    tr.guard(AttrSource(written, "is_leaf"), "BOOL_MATCH", real.is_leaf)

"""Masks of random numbers, saved as bool.

Note [Masks]: dropout multiplies by 0 or 1 in the tensor's dtype; the backward pass needs the mask. So that the
partition can save one byte for each element, readers of the mask read a bool, converted to that dtype again. Where the
partition saves something else, both conversions fuse into the kernel that draws the mask, and cost nothing. A quotient
of the mask by a number is chosen between two numbers: readers compute that again rather than store it.
"""

from __future__ import annotations

import torch
from torch import fx

from framesmith_aot.trace.joint import JointGraph
from framesmith_aten.graphs.nodes import view_root
from framesmith_aten.meta import CHECKPOINT_PATH, SAVED_IN
from framesmith_guards.torch_adapter import OpOverload, aten


def narrow_masks(joint: JointGraph) -> None:
    """Insert a bool between a `bernoulli` and its readers (see Note [Masks]). A second time, it changes nothing."""
    seen = {view_root(node) for node in joint.slots}
    for node in joint.graph.find_nodes(op="call_function", target=aten.bernoulli.p):
        if node in seen or node.meta["val"].dtype == torch.bool:
            continue
        readers = list(node.users)
        if [reader.target for reader in readers] == [aten.ne.Scalar]:
            continue  # it is done
        mask = _insert_after(joint, node, aten.ne.Scalar, (0,), {})
        numbers = _insert_after(joint, mask, aten._to_copy.default, (), {"dtype": node.meta["val"].dtype})
        if CHECKPOINT_PATH.on(mask):
            SAVED_IN.set(mask, CHECKPOINT_PATH.of(mask))
        for reader in readers:
            reader.replace_input_with(node, numbers)
            if reader.target is aten.div.Scalar:
                _choose_quotient(joint, mask, reader)


def _choose_quotient(joint: JointGraph, mask: fx.Node, quotient: fx.Node) -> None:
    """Write a mask divided by a number, as dropout scales it, as a choice between two numbers."""
    value, divisor = quotient.meta["val"], quotient.args[1]
    if not isinstance(divisor, (int, float)) or divisor == 0 or not value.is_floating_point():
        return
    scale = torch.ones((), dtype=value.dtype, device=value.device).div(divisor).item()
    options = {"dtype": value.dtype, "device": value.device}
    chosen = [_insert_before(joint, quotient, aten.scalar_tensor.default, (one,), options) for one in (scale, 0.0)]
    quotient.target, quotient.args = aten.where.self, (mask, *chosen)


def _insert_after(
    joint: JointGraph, node: fx.Node, target: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> fx.Node:
    """Return a new node right after `node`, its first operand, with its metadata."""
    return _insert_before(joint, node.next, target, (node, *args), kwargs, like=node)


def _insert_before(
    joint: JointGraph,
    place: fx.Node,
    target: OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    like: fx.Node | None = None,
) -> fx.Node:
    """Return a new node right before another, with its metadata or that of a third."""
    with joint.graph.inserting_before(place):
        made = joint.graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    made.meta = dict((place if like is None else like).meta)
    with joint.fake_mode, torch.no_grad():
        made.meta["val"] = target(*[one.meta["val"] if isinstance(one, fx.Node) else one for one in args], **kwargs)
    return made

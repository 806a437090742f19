"""Masks of random numbers, saved as bool.

Note [Masks]: dropout multiplies by 0 or 1 in the tensor's dtype; the backward pass needs the mask. So that the
partition can save one byte for each element, readers of the mask read a bool, converted to that dtype again. Where the
partition saves something else, both conversions fuse into the kernel that draws the mask, and cost nothing.
"""

from __future__ import annotations

import torch
from torch import fx

from framesmith_aot.trace.joint import JointGraph
from framesmith_aten.graphs.nodes import view_root
from framesmith_aten.meta import CHECKPOINT_PATH, SAVED_IN
from framesmith_guards.torch_adapter import OpOverload, aten


def narrow_masks(joint: JointGraph) -> None:
    """Insert a bool between a `bernoulli` and its readers (see Note [Masks])."""
    seen = {view_root(node) for node in joint.slots}
    for node in joint.graph.find_nodes(op="call_function", target=aten.bernoulli.p):
        if node in seen or node.meta["val"].dtype == torch.bool:
            continue
        readers = list(node.users)
        mask = _insert_after(joint, node, aten.ne.Scalar, (node, 0), {})
        numbers = _insert_after(joint, mask, aten._to_copy.default, (mask,), {"dtype": node.meta["val"].dtype})
        if CHECKPOINT_PATH.on(mask):
            SAVED_IN.set(mask, CHECKPOINT_PATH.of(mask))
        for reader in readers:
            reader.replace_input_with(node, numbers)


def _insert_after(
    joint: JointGraph, node: fx.Node, target: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> fx.Node:
    """Return a new node right after `node`, with its metadata."""
    with joint.graph.inserting_after(node):
        made = joint.graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    made.meta = dict(node.meta)
    with joint.fake_mode, torch.no_grad():
        made.meta["val"] = target(node.meta["val"], *args[1:], **kwargs)
    return made

"""Masks of random numbers, kept in a byte each.

Note [Masks]: dropout multiplies by numbers of the tensor's type that are 0 or 1; the backward pass needs to know which
they were. So that a cut may save a bool for each, what reads them reads a bool, made a number of that type again. Where
the cut goes elsewhere both conversions are in the kernel that reads the numbers, and cost nothing.
"""

from __future__ import annotations

import torch
from torch import fx

from framesmith_aot.trace.joint import JointGraph
from framesmith_aten.graphs.nodes import view_root
from framesmith_guards.torch_adapter import OpOverload, aten


def narrow_masks(joint: JointGraph) -> None:
    """Put a bool between what draws zeros and ones and what reads them (see Note [Masks])."""
    seen = {view_root(node) for node in joint.slots}
    for node in joint.graph.find_nodes(op="call_function", target=aten.bernoulli.p):
        if node in seen or node.meta["val"].dtype == torch.bool:
            continue
        readers = list(node.users)
        mask = _insert_after(joint, node, aten.ne.Scalar, (node, 0), {})
        numbers = _insert_after(joint, mask, aten._to_copy.default, (mask,), {"dtype": node.meta["val"].dtype})
        for reader in readers:
            reader.replace_input_with(node, numbers)


def _insert_after(
    joint: JointGraph, node: fx.Node, target: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> fx.Node:
    """A new node right behind another one, of the same origin."""
    with joint.graph.inserting_after(node):
        made = joint.graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    made.meta = dict(node.meta)
    with joint.fake_mode, torch.no_grad():
        made.meta["val"] = target(node.meta["val"], *args[1:], **kwargs)
    return made

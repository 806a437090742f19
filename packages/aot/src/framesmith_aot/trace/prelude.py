"""Graphs that begin with writes in no_grad, such as an optimizer's step, and go on with gradients.

Note [Preludes]: such a graph is compiled as two, called one after the other, where the second reads nothing of the
first but the inputs it has written to. In one graph, second derivatives would need the former values of these inputs,
the optimizer's state too: a copy of each in each call. Where compiled code fails, its part runs uncompiled: the writes
of the first part stand. So each part has to write last and to assume nothing, or the graph is compiled as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from framesmith_aot.torch_adapter import unstable
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.layouts import storage_id
from framesmith_aten.meta import EXAMPLE
from framesmith_aten.nested import tensors_in
from framesmith_aten.recording import computes_number, effects_of, is_call

#: Fewer copies cost less than the call of another graph.
LEAST_WRITTEN: Final = 8


@dataclass(frozen=True)
class Part:
    """One of the two graphs, and the positions of the inputs that it takes."""

    module: fx.GraphModule
    takes: tuple[int, ...]


def prelude_of(gm: fx.GraphModule) -> tuple[Part, Part] | None:
    """Return the two graphs that `gm` is compiled as, or None where it is compiled as one."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return None
    calls = list(filter(is_call, gm.graph.nodes))
    first = calls[: _end_of_prelude(calls)]
    rest = [*calls[len(first) :], *gm.graph.find_nodes(op="output")]
    # A call that computes numbers may divide by 0.
    may_raise = any(effects_of(node).may_fail or computes_number(node) for node in calls)
    if not first or may_raise or not _are_independent(gm, first, rest):
        return None
    return _part(gm, first), _part(gm, rest)


def _end_of_prelude(calls: Sequence[fx.Node]) -> int:
    """Return the number of calls before the first recorded one, with the grad mode switches around them."""
    end, records = 0, True
    for at, node in enumerate(calls):
        if node.target is unstable.set_grad_enabled:
            records = node.args[0] is True
            end = at + 1 if records else end
        else:
            effects = effects_of(node)
            if records or effects.random or effects.irreversible or effects.reshaped or effects.unproven:
                break
    return end


def _are_independent(gm: fx.GraphModule, first: Sequence[fx.Node], rest: Sequence[fx.Node]) -> bool:
    """Whether the rest has gradients and reads nothing of the first part but written inputs, and many of these."""
    inside = {*first}
    if any(user not in inside for node in first for user in node.users):
        return False
    if not any(one.requires_grad for node in rest for one in tensors_in(EXAMPLE.get(node))):
        return False
    strided = [one for node in first for one in effects_of(node).written if one.layout is torch.strided]
    storages = {storage_id(one) for one in strided}
    written = [node for node in gm.graph.find_nodes(op="placeholder") if _lies_in(EXAMPLE.get(node), storages)]
    return len(written) >= LEAST_WRITTEN and any(user not in inside for node in written for user in node.users)


def _lies_in(example: Any, storages: set[int]) -> bool:
    tensors = [one for one in tensors_in(example) if one.layout is torch.strided]
    return any(storage_id(one) in storages for one in tensors)


def _part(gm: fx.GraphModule, nodes: Sequence[fx.Node]) -> Part:
    """Return a graph of these nodes and their operands."""
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    read = {operand for node in nodes for operand in node.all_input_nodes}
    takes = []
    for at, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if node in read:
            takes.append(at)
            made[node] = graph.node_copy(node)
    for node in gm.graph.find_nodes(op="get_attr"):
        if node in read:
            made[node] = graph.node_copy(node)
    for node in nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
    if not nodes or nodes[-1].op != "output":
        graph.output(())
    return Part(new_module(gm, graph), tuple(takes))

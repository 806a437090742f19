"""A graph that begins with writes in no_grad, as an optimizer's step does, and then computes what has gradients.

Note [Preludes]: such a graph is compiled as two, called one after the other, where all that the second reads of the
first is the inputs it has written to. In one graph, second derivatives would need what these inputs were before, the
state of the optimizer too: a copy of each in each call. Where compiled code fails, the part whose it is runs as it is:
what the first has written stands. So each is to write last and to assume nothing, or the graph is compiled as one.
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
from framesmith_aten.meta import EXAMPLE, Effects
from framesmith_aten.operators import tensors_in
from framesmith_aten.recording import computes_number, effects_of, is_call

#: Fewer copies than this cost less than the call of another graph.
LEAST_WRITTEN: Final = 8


@dataclass(frozen=True)
class Part:
    """One of the two graphs, and which of the whole one's inputs it takes."""

    module: fx.GraphModule
    takes: tuple[int, ...]


def prelude_of(gm: fx.GraphModule) -> tuple[Part, Part] | None:
    """The two graphs that `gm` is compiled as, or None: it is one then."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return None
    calls = list(filter(is_call, gm.graph.nodes))
    first = calls[: _end_of_prelude(calls)]
    rest = [*calls[len(first) :], *gm.graph.find_nodes(op="output")]
    if not first or not all(map(_is_sure, calls)) or not _are_independent(gm, first, rest):
        return None
    return _part(gm, first), _part(gm, rest)


def _end_of_prelude(calls: Sequence[fx.Node]) -> int:
    """How many calls come before the first that is recorded, the switches of the grad mode around them included."""
    end, records = 0, True
    for at, node in enumerate(calls):
        if node.target is unstable.set_grad_enabled:
            records = node.args[0] is True
            end = at + 1 if records else end
        elif records or _has_other_effects(effects_of(node)):
            break
    return end


def _is_sure(node: fx.Node) -> bool:
    """Whether a call raises on no data; what computes numbers may: it divides by what is 0."""
    return not effects_of(node).may_fail and not computes_number(node)


def _has_other_effects(effects: Effects) -> bool:
    """Whether a call does more than compute and write to tensors."""
    return effects.random or effects.lasting or effects.reshaped or effects.unproven


def _are_independent(gm: fx.GraphModule, first: Sequence[fx.Node], rest: Sequence[fx.Node]) -> bool:
    """Whether the rest, with gradients, reads nothing of what comes first but inputs that are written to, and many."""
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
    """A graph of these nodes, of what they read, and of nothing else."""
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

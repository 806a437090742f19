"""Eager replay: the torch-level graph run again under autograd, and the gradients of one of its output groups."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge

from framesmith_aot.runtime.histories import Grads, with_history_of
from framesmith_aot.trace.output_groups import (
    End,
    Ends,
    Hidden,
    NodeResult,
    NodeShape,
    OutputGroup,
    Source,
    fitting,
)
from framesmith_aot.trace.replacements.table import called
from framesmith_aten.graphs.autograd_calls import new_leaf, stop_at
from framesmith_aten.layouts import storage_id
from framesmith_aten.meta import LOCATION


class EagerReplay(fx.Interpreter):
    """Runs the module as it was traced, with `inputs` in place of its attributes.

    `made`: tensors that the user holds, by the node that made them; the replayed history leads there. `changed`:
    mutated ones, by the node that gave them their history; each with an input's position, or the name of the node that
    made the result.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        attributes: Mapping[str, int],
        inputs: list[torch.Tensor],
        made: Mapping[str, torch.Tensor],
        changed: Mapping[str, tuple[int | str, torch.Tensor]],
    ) -> None:
        super().__init__(module)
        self.attributes = attributes
        self.inputs = inputs
        self.made = made
        self.changed = changed
        self.awaited = {one for one, _ in changed.values()}
        self.before: dict[int | str, torch.Tensor] = {}
        #: The leaves that the module makes.
        self.leaves: list[torch.Tensor] = []

    def run_node(self, n: fx.Node) -> Any:
        try:
            result = super().run_node(n)
        except Exception:
            location = LOCATION.get(n)
            if location is not None:  # FX adds it to the message
                n.meta["stack_trace"] = location.stack_trace
            raise
        if n.name in self.awaited:
            self.before[n.name] = result
        if n.name in self.changed:
            one, tensor = self.changed[n.name]
            before = self.before[one] if isinstance(one, str) else self.inputs[one]
            with torch.enable_grad():
                base = with_history_of(before, tensor)
                if isinstance(one, int):
                    self.inputs[one] = base
                lead = functools.partial(_shown_by, base, before)
                self.env = {node: fx.node.map_aggregate(value, lead) for node, value in self.env.items()}
                result = fx.node.map_aggregate(result, lead)
        return with_history_of(result, self.made[n.name]) if n.name in self.made else result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        at = self.attributes.get(target)
        return super().get_attr(target, args, kwargs) if at is None else self.inputs[at]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = called(target, args, kwargs)
        if target is new_leaf:
            self.leaves.append(result)
        return result


def _shown_by(base: torch.Tensor, before: torch.Tensor, value: Any) -> Any:
    """Return `base` in place of `before`, and the same view of it in place of a view of `before` with a history."""
    if value is before:
        return base
    if not isinstance(value, torch.Tensor) or not value.requires_grad or storage_id(value) != storage_id(base):
        return value
    if value.dtype != base.dtype or value.is_conj() or value.is_neg():
        return value
    return base.as_strided(value.shape, value.stride(), value.storage_offset())


def sources_of(group: OutputGroup, groups: Sequence[OutputGroup]) -> list[Source | None]:
    """Return what a group reads, as `NodeShape.sources` has it; None for tensors that the user holds."""
    positions = {
        edge: NodeResult(index, sum(max(len(slots), 1) for slots in one.slots[:position]))
        for index, one in enumerate(groups)
        for position, edge in enumerate(one.out)
    }
    return [
        positions[source] if isinstance(source, GradientEdge) else None if source.kind == "user" else source
        for source in group.into
    ]


def have_same_groups(nodes: Sequence[NodeShape], groups: Sequence[OutputGroup]) -> bool:
    """Whether the groups of both runs have the same results and read the same, in any order."""
    return len(nodes) == len(groups) and all(
        group.slots == [[] if isinstance(result, Hidden) else [result] for result in node.results]
        and {one for one in sources_of(group, groups) if one is not None} == {*node.sources}
        for node, group in zip(nodes, groups, strict=True)
    )


def _zeros_at(edge: GradientEdge) -> torch.Tensor:
    like = edge.node._input_metadata[edge.output_nr]
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)


def gradients_through(
    group: OutputGroup, ends: Ends, tangents: Sequence[torch.Tensor | None], wanted: Collection[End | GradientEdge]
) -> Grads:
    """Return the gradients of those operands of a group that are `wanted`, from the tangents of its results.

    Like autograd's engine, it skips nodes that lead to other operands only.
    """
    found: dict[End | GradientEdge, torch.Tensor] = {}

    def leave(node: Any, grads: Sequence[torch.Tensor | None], _: Any) -> None:
        for (source, number), grad in zip(node.next_functions, grads, strict=True):
            if grad is not None and source is not None:
                edge = GradientEdge(source, number)
                target = ends.get(edge, edge)
                if target in group.into:
                    grad = fitting(grad, source._input_metadata[number])
                    found[target] = grad if target not in found else found[target] + grad

    handles = [node.register_hook(functools.partial(leave, node)) for node in group.nodes]
    handles += stop_at(ends)
    outside = {source.node for source in group.into if isinstance(source, GradientEdge)}
    handles += [node.register_prehook(lambda grads: (None,) * len(grads)) for node in outside]
    came = [(edge, tangent) for edge, tangent in zip(group.out, tangents, strict=True) if tangent is not None]
    if not came:  # the engine begins with some gradient, which each node then does not see
        handles += [edge.node.register_prehook(lambda grads: (None,) * len(grads)) for edge in group.out]
        came = [(edge, _zeros_at(edge)) for edge in group.out]
    edges = [edge for edge, at in ends.items() if at in wanted]
    edges += [source for source in wanted if isinstance(source, GradientEdge)]
    try:
        if edges:
            torch.autograd.grad(
                [edge for edge, _ in came],
                edges,
                [tangent for _, tangent in came],
                create_graph=True,
                allow_unused=True,
            )
    finally:
        for handle in handles:
            handle.remove()
    return tuple([found.get(source) if source in wanted else None for source in group.into])

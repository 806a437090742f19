"""A torch-level graph run a second time, where autograd sees it, and the gradients of one of its regions."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge

from framesmith_aot.runtime.histories import Grads, with_history_of
from framesmith_aot.trace.interpret import called
from framesmith_aot.trace.output_groups import Ends, Hidden, NodeShape, Operand, OutputGroup, fitting, stop_at_ends
from framesmith_aten.layouts import storage_id
from framesmith_aten.meta import LOCATION


class EagerReplay(fx.Interpreter):
    """Runs the module as it was traced, with these inputs in place of its attributes.

    `made` are tensors that the user holds, by the nodes that made them: history is to lead there. `changed` are such
    that the graph has changed, by the nodes that gave them their history: the position of an input, or the name of the
    node that made a result, and the tensor.
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

    def run_node(self, n: fx.Node) -> Any:
        try:
            result = super().run_node(n)
        except Exception:
            location = LOCATION.get(n)
            if location is not None:  # what FX adds to the message; no text is kept with the nodes
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
        return called(target, args, kwargs)


def _shown_by(base: torch.Tensor, before: torch.Tensor, value: Any) -> Any:
    """`base` instead of what it was before, and views of it instead of such views, where they have a history."""
    if value is before:
        return base
    if not isinstance(value, torch.Tensor) or not value.requires_grad or storage_id(value) != storage_id(base):
        return value
    if value.dtype != base.dtype or value.is_conj() or value.is_neg():
        return value
    return base.as_strided(value.shape, value.stride(), value.storage_offset())


def slots_of(node: NodeShape) -> list[list[int]]:
    """The slots of each result of a node, as a region tells them."""
    return [[] if isinstance(result, Hidden) else [result] for result in node.results]


def operands_of(group: OutputGroup, groups: Sequence[OutputGroup]) -> list[Operand | None]:
    """What a region reads, as a node tells it; None for what the user holds and history was led to."""
    places = {
        edge: (index, sum(max(len(slots), 1) for slots in one.slots[:position]))
        for index, one in enumerate(groups)
        for position, edge in enumerate(one.out)
    }
    return [
        places[source] if isinstance(source, GradientEdge) else source if source >= 0 else None for source in group.into
    ]


def have_same_groups(nodes: Sequence[NodeShape], groups: Sequence[OutputGroup]) -> bool:
    """Whether the regions of both runs have the same results, and read the same, in whatever order they come to it."""
    return len(nodes) == len(groups) and all(
        group.slots == slots_of(node)
        and {one for one in operands_of(group, groups) if one is not None} == {*node.operands}
        for node, group in zip(nodes, groups, strict=True)
    )


def gradients_through(
    group: OutputGroup,
    ends: Ends,
    tangents: Sequence[torch.Tensor | None],
    wanted: Collection[int | GradientEdge],
) -> Grads:
    """The gradients that one region gives, from the tangents of its results, for those of its operands that are wanted.

    As autograd's engine does it: what leads to others alone is not run.
    """
    found: dict[int | GradientEdge, torch.Tensor] = {}

    def leave(node: Any, grads: Sequence[torch.Tensor | None], _: Any) -> None:
        for (source, number), grad in zip(node.next_functions, grads, strict=True):
            if grad is not None and source is not None:
                edge = GradientEdge(source, number)
                target = ends.get(edge, edge)
                if target in group.into:
                    grad = fitting(grad, source._input_metadata[number])
                    found[target] = grad if target not in found else found[target] + grad

    handles = [node.register_hook(functools.partial(leave, node)) for node in group.nodes]
    handles += stop_at_ends(ends)
    outside = {source.node for source in group.into if isinstance(source, GradientEdge)}
    handles += [node.register_prehook(lambda grads: (None,) * len(grads)) for node in outside]
    came = [(edge, tangent) for edge, tangent in zip(group.out, tangents, strict=True) if tangent is not None]
    places = [edge for edge, at in ends.items() if at in wanted]
    places += [source for source in wanted if isinstance(source, GradientEdge)]
    try:
        if places:
            torch.autograd.grad(
                [edge for edge, _ in came],
                places,
                [tangent for _, tangent in came],
                create_graph=True,
                allow_unused=True,
            )
    finally:
        for handle in handles:
            handle.remove()
    return tuple([found.get(source) if source in wanted else None for source in group.into])

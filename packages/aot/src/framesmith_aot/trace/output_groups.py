"""The regions of autograd's graph: what becomes one autograd node each.

Note [Regions]: the user sees where gradients pass a result: by hooks, `retain_grad`, `torch.autograd.grad` with respect
to it, a backward pass from it alone, what such a pass frees and which leaves it reaches. All of it is as in eager mode
if a compiled graph becomes not one autograd node but one for each set of results: two of autograd's own nodes belong
together when the same results depend on them. A pass from some of the results then runs a region whole or not at all,
as eager runs the nodes in it; a result that others are computed from lies between two regions. The sets shrink on the
way to the results, so regions have an order. Most graphs have one result, and one region.

A result that is a view of an input or of another result is made by the view operator itself, outside of the nodes.
What is computed from it reads it as it reads an input: regions end there as well.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from framesmith_aot.trace.saved import NOTHING_SAVED, SavedByEager
from framesmith_aot.trace.views import NumberAt
from framesmith_aten.symbolic import all_equal

#: The edges at which gradients leave the graph for an input or a view, and its position.
Ends = Mapping[GradientEdge, int]


@dataclass(frozen=True)
class Hidden:
    """A result of a region that only other regions read: autograd needs to know what its gradient looks like.

    Of its shape what is symbolic is a `views.NumberAt`.
    """

    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def numbers(self) -> list[NumberAt]:
        return [length for length in self.shape if isinstance(length, NumberAt)]


#: Of an autograd node: the position of an input, n + that of an output that is a view (where there are n inputs), or a
#: node and the position among its results.
Operand = int | tuple[int, int]


#: When autograd's engine comes to a node: of those that are ready, to that of the highest number.
BEFORE_ALL_OTHERS = 2**64 - 1


@dataclass(frozen=True)
class Refusal:
    """An error of eager mode's autograd: its type, its words, and the number of the node that raises it.

    `first`: whether its engine comes to that node before all others.
    """

    error: type[Exception]
    words: str
    number: int
    first: bool


@dataclass(frozen=True)
class NodeShape:
    """One autograd node of a compiled graph; each comes before those that read it.

    `results` are positions of slots and what is hidden; `reached` gives for each operand the positions of the results
    that its gradient can depend on. `kept` is what eager mode keeps for it, `refusals` why eager mode would refuse the
    gradients of some operands, by position.
    """

    results: tuple[int | Hidden, ...]
    operands: tuple[Operand, ...]
    reached: tuple[frozenset[int], ...]
    eager_saved: SavedByEager = NOTHING_SAVED
    refusals: Mapping[int, Refusal] = field(default_factory=dict)


@dataclass(eq=False)
class OutputGroup:
    """Nodes of autograd, the edges at which gradients enter them, and those at which they leave.

    `out` holds gradient edges of the region's own nodes: those of slots and those that other regions read, `slots` for
    each the positions of its slots (none: nobody but the regions sees it). `into` holds what the region reads:
    positions of inputs and views, and edges of other regions. `reached` is that of `NodeShape`.
    """

    nodes: list[Any] = field(default_factory=list)
    out: list[GradientEdge] = field(default_factory=list)
    slots: list[list[int]] = field(default_factory=list)
    into: list[int | GradientEdge] = field(default_factory=list)
    reached: list[frozenset[int]] = field(default_factory=list)

    def position_out(self, edge: GradientEdge) -> int:
        """Where the edge is in `out`; added when it is new."""
        if edge not in self.out:
            self.out.append(edge)
            self.slots.append([])
        return self.out.index(edge)

    def slots_of(self, edge: GradientEdge) -> list[int]:
        """The slots whose gradients enter at an edge of `out`."""
        return self.slots[self.out.index(edge)]


def output_groups(
    roots: Mapping[int, torch.Tensor], ends: Ends, bases: Mapping[int, int] = MappingProxyType({})
) -> list[OutputGroup]:
    """The regions, each before those that read it.

    `roots` are the tensors of slots by position, `ends` the edges of inputs and views, `bases` the slots that views are
    views of.
    """
    dependents = _dependents(roots.values(), ends)
    found: dict[int, OutputGroup] = {}
    for node, mask in dependents.items():
        found.setdefault(mask, OutputGroup()).nodes.append(node)
    group_of = {node: found[mask] for node, mask in dependents.items()}
    for position, tensor in roots.items():
        edge = edge_of(tensor)
        group = group_of[edge.node]
        group.slots[group.position_out(edge)].append(position)
    for node, group in group_of.items():
        for edge in edges(node):
            source = ends.get(edge, edge)
            if isinstance(source, GradientEdge):
                if group_of[source.node] is group:
                    continue
                group_of[source.node].position_out(source)
            if source not in group.into:
                group.into.append(source)
    groups = list(found.values())
    for group in groups:
        group.reached = _reached(group, ends)
    return [groups[index] for index in order_of(groups, bases)]


def order_of(
    groups: Sequence[OutputGroup], bases: Mapping[int, int], last: Mapping[int, int] = MappingProxyType({})
) -> list[int]:
    """The regions' places, each behind what it reads, and otherwise as they were made.

    The engine comes first to what was made last. Where it comes no further in a region than to one of its nodes, `last`
    has this one's number instead of that of the last.
    """
    of_slot = {slot: group for group in groups for slots in group.slots for slot in slots}
    of_edge = {edge: group for group in groups for edge in group.out}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    number = {id(group): index for index, group in enumerate(groups)}
    for index, group in enumerate(groups):
        read = [of_edge[source] for source in group.into if isinstance(source, GradientEdge)]
        read += [of_slot[bases[source]] for source in group.into if isinstance(source, int) and source in bases]
        sorter.add(index, *(number[id(one)] for one in read))
    sorter.prepare()
    ready: list[tuple[int, int]] = []
    found = []
    while sorter.is_active():
        for index in sorter.get_ready():
            heappush(ready, (last.get(index, _last_made(groups[index])), index))
        _, index = heappop(ready)
        sorter.done(index)
        found.append(index)
    return found


def _last_made(group: OutputGroup) -> int:
    numbers = (node._sequence_nr() for node in group.nodes)
    return max((number for number in numbers if number != BEFORE_ALL_OTHERS), default=0)


def stop_at_ends(ends: Collection[GradientEdge]) -> list[RemovableHandle]:
    """Keep gradients that come to an end from going on through its node, back among those that are looked at."""
    return [
        edge.node.register_prehook(functools.partial(_without, edge.output_nr))
        for edge in ends
        if edge.node.next_functions
    ]


def _without(number: int, grads: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    """The gradients of a node's results less one."""
    return (*grads[:number], None, *grads[number + 1 :])


def edge_of(tensor: torch.Tensor) -> GradientEdge:
    """Where the gradient of a tensor goes, comparable with the edges between nodes."""
    return GradientEdge(*get_gradient_edge(tensor)[:2])


def edges(node: Any) -> Iterator[GradientEdge]:
    """Where a node's gradients go."""
    for source, number in node.next_functions:
        if source is not None:
            yield GradientEdge(source, number)


def _dependents(roots: Iterable[torch.Tensor], ends: Ends) -> dict[Any, int]:
    """For each node the roots that depend on it, a bit for each."""
    found: dict[Any, int] = {}
    for bit, root in enumerate(roots):
        for node in _reachable([root.grad_fn], ends):
            found[node] = found.get(node, 0) | 1 << bit
    return found


def _reachable(start: Sequence[Any], ends: Collection[GradientEdge]) -> list[Any]:
    """The nodes themselves and those that their gradients go to before they come to an end."""
    seen = set(start)
    pending = list(start)
    for node in pending:
        for edge in edges(node):
            if edge.node not in seen and edge not in ends:
                seen.add(edge.node)
                pending.append(edge.node)
    return pending


def reached(tensors: Sequence[torch.Tensor], ends: Collection[GradientEdge]) -> list[GradientEdge]:
    """Those of `ends` to which the history of some tensors leads, before it comes to another of them."""
    found = {edge: None for edge in map(edge_of, tensors) if edge in ends}
    start = [tensor.grad_fn for tensor in tensors if edge_of(tensor) not in found]
    for node in _reachable(start, ends):
        found.update((edge, None) for edge in edges(node) if edge in ends)
    return [*found]


def _reached(group: OutputGroup, ends: Ends) -> list[frozenset[int]]:
    """For each position in `into`, the positions among the results whose gradients can go there."""
    found: list[set[int]] = [set() for _ in group.into]
    inside = set(group.nodes)
    results = [edge for edge, slots in zip(group.out, group.slots, strict=True) for _ in range(max(len(slots), 1))]
    for position, out in enumerate(results):
        pending, seen = [out.node], {out.node}
        for node in pending:
            for edge in edges(node):
                if edge in ends or edge.node not in inside:
                    found[group.into.index(ends.get(edge, edge))].add(position)
                elif edge.node not in seen:
                    seen.add(edge.node)
                    pending.append(edge.node)
    return [frozenset(positions) for positions in found]


def fitting(grad: torch.Tensor, wanted: Any) -> torch.Tensor:
    """A gradient as the node it goes to takes it: the engine sums it to the shape there, and converts it."""
    if grad.is_complex() and not wanted.dtype.is_complex:
        grad = torch.real(grad)
    if grad.dim() != len(wanted.shape) or not all_equal(grad.shape, wanted.shape):
        grad = grad.sum_to_size(wanted.shape)
    return grad if grad.dtype == wanted.dtype else grad.to(wanted.dtype)

"""Output groups: the parts of autograd's graph that become one autograd node each.

Note [Output groups]: the user sees where gradients pass a result: by hooks, `retain_grad`, `torch.autograd.grad` with
respect to it, a backward pass from it alone, the tensors that such a pass frees and the leaves that it reaches. All of
this is as in eager mode if a compiled graph becomes one autograd node for each set of results: two of autograd's own
nodes are in one group when the same results depend on them. (Results that nobody sees but one node, which hooks of a
module wait for, count as one.) A pass from some of the results then runs a group whole or not at all, as eager mode
runs its nodes; a result that others are computed from lies between two groups. The sets shrink towards the results, so
groups have an order. Most graphs have one result, and one group.

A result that is a view of an input or of another result is made by the view operator itself, outside of the nodes.
Nodes read it as they read an input: groups end there as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.saved import NOTHING_SAVED, SavedByEager
from framesmith_aot.trace.views import NumberAt
from framesmith_aten.symbolic import all_equal


class End(NamedTuple):
    """A tensor at which gradients leave the graph: an input, an output that is a view, or one that the user holds.

    Those of a leaf that the graph makes and nobody sees are dropped; it is read by groups that read nothing else.
    """

    kind: Literal["input", "output", "user", "dropped"]
    position: int


class NodeResult(NamedTuple):
    """A result of an autograd node, by the positions of both."""

    node: int
    position: int


Ends = Mapping[GradientEdge, End]
"""The edges at which gradients leave the graph."""

Source = End | NodeResult
"""The source of a node's operand."""


@dataclass(frozen=True)
class Hidden:
    """A result of a group that only other groups read: autograd needs the shape and dtype of its gradient.

    Symbolic lengths of the shape are `views.NumberAt`.
    """

    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def numbers(self) -> list[NumberAt]:
        return [length for length in self.shape if isinstance(length, NumberAt)]


#: A sequence number. Of the nodes that are ready, the engine runs the one with the highest number.
BEFORE_ALL_OTHERS = 2**64 - 1


@dataclass(frozen=True)
class Refusal:
    """An error of eager mode's autograd: its type, its message, and the sequence number of the node that raises it.

    `first`: whether the engine reaches that node before all others.
    """

    error: type[Exception]
    message: str
    number: int
    first: bool


@dataclass(frozen=True)
class Operand:
    """One operand of an autograd node. `reached`: positions of the results that its gradient can depend on.

    `refusal`: why eager mode refuses its gradient.
    """

    source: Source
    reached: frozenset[int]
    refusal: Refusal | None = None


@dataclass(frozen=True)
class NodeShape:
    """One autograd node of a compiled graph; each precedes its readers.

    `results`: positions of slots, or hidden ones. `eager_saved`: what eager mode saves for its backward pass.
    `asks_absent`: a Function in it asks which of several gradients are absent: zeros do not stand for them.
    """

    results: tuple[int | Hidden, ...]
    operands: tuple[Operand, ...]
    eager_saved: SavedByEager = NOTHING_SAVED
    asks_absent: bool = False

    @property
    def sources(self) -> list[Source]:
        return [operand.source for operand in self.operands]


@dataclass(eq=False)
class OutputGroup:
    """Nodes of autograd's graph, the edges at which gradients enter them, and those at which they leave.

    `out`: gradient edges of the group's own nodes, for its slots and for what other groups read; `slots`: for each the
    positions of its slots (none: hidden). `into`: what the group reads, inputs and views, and edges of other groups;
    `reached`: see `Operand`.
    """

    nodes: list[Any] = field(default_factory=list)
    out: list[GradientEdge] = field(default_factory=list)
    slots: list[list[int]] = field(default_factory=list)
    into: list[End | GradientEdge] = field(default_factory=list)
    reached: list[frozenset[int]] = field(default_factory=list)

    def position_out(self, edge: GradientEdge) -> int:
        """Return the position of the edge in `out`; add it when it is new."""
        if edge not in self.out:
            self.out.append(edge)
            self.slots.append([])
        return self.out.index(edge)

    def slots_of(self, edge: GradientEdge) -> list[int]:
        """Return the slots whose gradients enter at an edge of `out`."""
        return self.slots[self.out.index(edge)]


def output_groups(
    roots: Mapping[int, torch.Tensor],
    ends: Ends,
    bases: Mapping[End, Collection[int]] = MappingProxyType({}),
    together: Collection[frozenset[int]] = (),
) -> list[OutputGroup]:
    """Return the groups, each before its readers.

    `roots`: the tensors of slots by position; `ends`: the edges of inputs and views; `bases`: the slots that views are
    made of. `together`: slots that count as one result, unless one is computed from another.
    """
    dependents = _dependents(roots, ends, together)
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
        seen = [source for source in group.into if not is_dropped(source)]
        group.into = seen or group.into[:1]
        group.reached = _reached(group, ends)
    return [groups[index] for index in order_of(groups, bases)]


def sets_to_join(groups: Sequence[OutputGroup], saved: Sequence[SavedByEager]) -> list[frozenset[int]]:
    """Return sets of slots whose groups may be joined, since a pass from one of them frees what each other one reads.

    No group reads a result of another one there that is a slot: a hook on it has to see its gradient.
    """
    slots_of = _slots_of_all(groups)
    read = {source for group in groups for source in group.into if isinstance(source, GradientEdge)}
    if any(slots and edge in read for group in groups for edge, slots in zip(group.out, group.slots, strict=True)):
        return []
    found: list[frozenset[int]] = []
    freed = [slots for slots, one in zip(slots_of, saved, strict=True) if one.anything and len(slots) > 1]
    for slots in sorted(freed, key=len, reverse=True):
        if not any(slots & other for other in found):
            found.append(slots)
    return found


def _slots_of_all(groups: Sequence[OutputGroup]) -> list[frozenset[int]]:
    """Return, for each group, the slots that depend on it."""
    readers: dict[GradientEdge, list[int]] = {}
    for index, group in enumerate(groups):
        for source in group.into:
            if isinstance(source, GradientEdge):
                readers.setdefault(source, []).append(index)
    found: list[frozenset[int]] = [frozenset()] * len(groups)
    for index in reversed(range(len(groups))):  # each precedes its readers
        own = {slot for slots in groups[index].slots for slot in slots}
        later = (found[reader] for edge in groups[index].out for reader in readers.get(edge, ()))
        found[index] = frozenset(own).union(*later)
    return found


def joined(groups: Sequence[OutputGroup], sets: Collection[frozenset[int]], ends: Ends) -> list[OutputGroup]:
    """Return the groups with those joined that slots of one of `sets` alone depend on."""
    if not sets:
        return [*groups]
    slots_of = _slots_of_all(groups)
    found: dict[Any, OutputGroup] = {}
    for index, (group, slots) in enumerate(zip(groups, slots_of, strict=True)):
        key: Any = next((one for one in sets if slots <= one), index)
        whole = found.setdefault(key, OutputGroup())
        whole.nodes += group.nodes
        for edge, own in zip(group.out, group.slots, strict=True):
            if own or key == index:
                whole.out.append(edge)
                whole.slots.append(own)
        whole.into += [source for source in group.into if source not in whole.into]
    for whole in found.values():
        inner = {*whole.nodes}
        whole.into = [one for one in whole.into if isinstance(one, End) or one.node not in inner]
        whole.reached = _reached(whole, ends)
    return [*found.values()]


def is_dropped(source: End | GradientEdge) -> bool:
    """Whether gradients that leave there are dropped."""
    return isinstance(source, End) and source.kind == "dropped"


def order_of(
    groups: Sequence[OutputGroup], bases: Mapping[End, Collection[int]], last: Mapping[int, int] = MappingProxyType({})
) -> list[int]:
    """Return the groups' positions, each after what it reads, else by sequence number.

    The engine runs the highest number first. Where it stops in a group at a node, `last` has this node's number.
    """
    of_slot = {slot: group for group in groups for slots in group.slots for slot in slots}
    of_edge = {edge: group for group in groups for edge in group.out}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    number = {id(group): index for index, group in enumerate(groups)}
    for index, group in enumerate(groups):
        read = [of_edge[source] for source in group.into if isinstance(source, GradientEdge)]
        read += [of_slot[slot] for source in group.into if isinstance(source, End) for slot in bases.get(source, ())]
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


def edge_of(tensor: torch.Tensor) -> GradientEdge:
    """Return the gradient edge of a tensor, comparable with edges between nodes."""
    return GradientEdge(*get_gradient_edge(tensor)[:2])


class _ReadsAll(torch.autograd.Function):
    """A node whose edges are those of the tensors that it takes."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.empty(())


def edges_of(tensors: Sequence[torch.Tensor]) -> list[GradientEdge]:
    """Return the edges of many tensors, each of which requires a gradient, with one operator for all."""
    if not tensors:
        return []
    with functional.below(), unstable.disable_current_modes(), torch.enable_grad():
        node = _ReadsAll.apply(*tensors).grad_fn  # type: ignore[no-untyped-call]
    return [GradientEdge(source, number) for source, number in node.next_functions]


def edges(node: Any) -> Iterator[GradientEdge]:
    for source, number in node.next_functions:
        if source is not None:
            yield GradientEdge(source, number)


def _dependents(roots: Mapping[int, torch.Tensor], ends: Ends, together: Collection[frozenset[int]]) -> dict[Any, int]:
    """Return, for each node, the roots that depend on it, as bits; those of a set `together` have one bit."""
    reached = {slot: _reachable([root.grad_fn], ends) for slot, root in roots.items()}
    bits = {slot: 1 << bit for bit, slot in enumerate(roots)}
    for slots in together:
        found = sorted(slots & roots.keys())
        if not any(roots[slot].grad_fn in reached[other] for slot in found for other in found if other != slot):
            bits.update(dict.fromkeys(found, sum(bits[slot] for slot in found)))
    dependents: dict[Any, int] = {}
    for slot, nodes in reached.items():
        for node in nodes:
            dependents[node] = dependents.get(node, 0) | bits[slot]
    return dependents


def _reachable(start: Sequence[Any], ends: Collection[GradientEdge]) -> list[Any]:
    """Return the nodes and those that their gradients reach before an end."""
    seen = set(start)
    pending = list(start)
    for node in pending:
        for edge in edges(node):
            if edge.node not in seen and edge not in ends:
                seen.add(edge.node)
                pending.append(edge.node)
    return pending


def reached(tensors: Sequence[torch.Tensor], ends: Collection[GradientEdge]) -> list[GradientEdge]:
    """Return those of `ends` to which the histories of some tensors lead, before they come to another of them."""
    found = {edge: None for edge in map(edge_of, tensors) if edge in ends}
    start = [tensor.grad_fn for tensor in tensors if edge_of(tensor) not in found]
    for node in _reachable(start, ends):
        found.update((edge, None) for edge in edges(node) if edge in ends)
    return [*found]


def _reached(group: OutputGroup, ends: Ends) -> list[frozenset[int]]:
    """Return, for each position in `into`, the positions among the results whose gradients can go there."""
    found: list[set[int]] = [set() for _ in group.into]
    results = [edge for edge, slots in zip(group.out, group.slots, strict=True) for _ in range(max(len(slots), 1))]
    for position, out in enumerate(results):
        pending, seen = [out.node], {out.node}
        for node in pending:
            for edge in edges(node):
                if (target := ends.get(edge, edge)) in group.into:
                    found[group.into.index(target)].add(position)
                elif edge not in ends and edge.node not in seen:
                    seen.add(edge.node)
                    pending.append(edge.node)
    return [frozenset(positions) for positions in found]


def fitting(grad: torch.Tensor, wanted: Any) -> torch.Tensor:
    """Return a gradient summed to the shape, and converted to the dtype, of its receiver, as the engine does."""
    if grad.is_complex() and not wanted.dtype.is_complex:
        grad = torch.real(grad)
    if grad.dim() != len(wanted.shape) or not all_equal(grad.shape, wanted.shape):
        grad = grad.sum_to_size(wanted.shape)
    return grad if grad.dtype == wanted.dtype else grad.to(wanted.dtype)

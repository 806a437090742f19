"""Puts the calls of a recorded pass into the order in which the engine would run them.

Note [Order]: the engine runs the ready node with the highest sequence number, the last one recorded in the forward
pass, and leaves that are ready first of all; among those, the order is that of a heap of libstdc++. Its capture hook
visits nodes depth first instead. Users see the difference in the order of hooks and of writes to `.grad`. Here both
orders are computed from the graph's edges. The engine's cache does not know sequence numbers: a pass with the same
edges whose forward pass ran in another order has hooks in the order of the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge, get_gradient_edge

from framesmith_autograd_compiler import calls


@dataclass(frozen=True, eq=False)
class _Root:
    """The node that stands before the roots of a pass."""

    next_functions: tuple[tuple[Any, int], ...]

    def name(self) -> str:
        return "torch::autograd::GraphRoot"


@dataclass
class Edges:
    """The edges that a pass from `roots` follows; with `inputs`, only those to nodes on the way there."""

    root: _Root
    _next: dict[Any, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, roots: Sequence[Any], inputs: Sequence[Any], accumulates: bool) -> Edges:
        edges = cls(_Root(tuple((edge.node, edge.output_nr) for edge in map(_edge, roots))))
        reached = _reached(edges.root)
        wanted = {_edge(one).node for one in inputs}
        needed = {node for node in wanted if accumulates}
        executed = {*wanted}
        for node in reversed(reached):  # every node after those it leads to
            if not inputs or any(follower in executed for follower in _followers(node)):
                executed.add(node)
                needed.add(node)
        for node in reached:
            if node in needed:
                edges._next[node] = [one for one in _followers(node) if one in executed]
        return edges

    def after(self, node: Any) -> list[Any]:
        return self._next.get(node, [])

    def count(self) -> dict[Any, int]:
        """Return how many edges lead to each node."""
        found: dict[Any, int] = {}
        for followers in self._next.values():
            for one in followers:
                found[one] = found.get(one, 0) + 1
        return found

    def recorded(self) -> list[Any]:
        """Return the nodes in the order in which the capture hook visits them."""
        waiting, order, stack = self.count(), [], [self.root]
        while stack:
            node = stack.pop()
            order.append(node)
            stack += self._ready(node, waiting)
        return order

    def run(self) -> list[Any]:
        """Return the nodes in the order in which the engine runs them."""
        waiting, order, heap = self.count(), [], _Heap()
        heap.push(self.root, 0)
        while heap:
            node = heap.pop()
            order.append(node)
            for one in self._ready(node, waiting):
                heap.push(one, one._sequence_nr())
        return order

    def _ready(self, node: Any, waiting: dict[Any, int]) -> Iterator[Any]:
        for one in self.after(node):
            waiting[one] -= 1
            if not waiting[one]:
                yield one


class _Heap:
    """A priority queue of libstdc++, whose order of equal priorities it has: `std::push_heap`, `std::pop_heap`."""

    def __init__(self) -> None:
        self._items: list[tuple[int, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._items)

    def push(self, node: Any, priority: int) -> None:
        self._items.append((priority, node))
        self._rise(len(self._items) - 1, (priority, node))

    def pop(self) -> Any:
        first, last = self._items[0], self._items.pop()
        if self._items:
            self._rise(self._sink(), last)
        return first[1]

    def _rise(self, hole: int, item: tuple[int, Any]) -> None:
        while hole and self._items[(hole - 1) // 2][0] < item[0]:
            self._items[hole] = self._items[(hole - 1) // 2]
            hole = (hole - 1) // 2
        self._items[hole] = item

    def _sink(self) -> int:
        """Move the hole at the top to a leaf, along the greater child; the second of equal ones."""
        items, hole = self._items, 0
        while (child := 2 * hole + 2) < len(items):
            child -= items[child][0] < items[child - 1][0]
            items[hole] = items[child]
            hole = child
        if child == len(items):
            items[hole] = items[child - 1]
            hole = child - 1
        return hole


def _edge(one: torch.Tensor | GradientEdge) -> GradientEdge:
    return get_gradient_edge(one) if isinstance(one, torch.Tensor) else one


def _followers(node: Any) -> list[Any]:
    return [one for one, _ in node.next_functions if one is not None]


def _reached(root: Any) -> list[Any]:
    """Return all nodes, each before those that it leads to."""
    done: dict[Any, None] = {}
    stack: list[tuple[Any, Iterator[Any]]] = [(root, iter(_followers(root)))]
    seen = {root}
    while stack:
        node, left = stack[-1]
        follower = next((one for one in left if one not in seen), None)
        if follower is None:
            done[node] = None
            stack.pop()
        else:
            seen.add(follower)
            stack.append((follower, iter(_followers(follower))))
    return [*reversed(done)]


def is_observable(graph: fx.Graph) -> bool:
    """Whether user code runs in the pass, which may see the order of calls."""
    return any(node.target in calls.OPAQUE or node.target is calls.call_leaf_hook for node in graph.nodes)


def in_engine_order(graph: fx.Graph, groups: Sequence[tuple[str, list[fx.Node]]], edges: Callable[[], Edges]) -> bool:
    """Reorder the graph; `groups` are its calls by the autograd node, with the node's name, as recorded.

    Returns whether the graph has the engine's order now: not where the nodes are others than the edges lead to.
    """
    if not is_observable(graph):
        return True
    found = edges()
    recorded = found.recorded()
    if [node.name() for node in recorded] != [name for name, _ in groups]:
        return False
    of_node = {node: calls_of for node, (_, calls_of) in zip(recorded, groups, strict=True)}
    emitted: dict[fx.Node, None] = {node: None for node in graph.nodes if node.op in ("placeholder", "get_attr")}

    def emit(node: fx.Node) -> None:
        if node not in emitted:
            for source in node.all_input_nodes:
                emit(source)
            emitted[node] = None

    for node in found.run():
        for call in of_node[node]:
            # A sum, which the first of its operands' nodes may have recorded, is computed where it is needed.
            if call.target is not calls.add:
                emit(call)
    for node in graph.nodes:
        if node.op != "output":
            emit(node)
    last = None
    for node in emitted:
        if last is not None:
            last.append(node)
        last = node
    return True

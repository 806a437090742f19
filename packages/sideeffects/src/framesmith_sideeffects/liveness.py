"""Liveness and order of creation of the values that a replay makes, with cycles broken at containers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from framesmith_sideeffects.protocol import TracedContainer, TracedValue, is_new

Edges = Callable[[TracedValue], Iterable[TracedValue]]


def reachable(roots: Iterable[TracedValue], edges: Edges) -> dict[int, TracedValue]:
    """All values reachable from the roots, keyed by `id`, in depth-first order."""
    found: dict[int, TracedValue] = {}
    pending = list(roots)[::-1]
    while pending:
        value = pending.pop()
        if id(value) in found:
            continue
        found[id(value)] = value
        pending.extend(reversed(list(edges(value))))
    return found


@dataclass(slots=True)
class CreationPlan:
    """`order`: values to make, each after its parts. `made_empty`: ids of containers to make empty and fill later."""

    order: list[TracedValue] = field(default_factory=list)
    made_empty: set[int] = field(default_factory=set)


def parts(value: TracedValue) -> Iterable[TracedValue]:
    """Values needed to make a value: none if it is loaded from its source."""
    return () if value.source is not None else value.referents()


def can_be_made_empty(value: TracedValue) -> bool:
    """Whether a value is a container made in the trace, which can be made empty and filled later."""
    return is_new(value) and isinstance(value, TracedContainer)


def plan_creation(values: Iterable[TracedValue]) -> CreationPlan:
    """Order values after their parts; every cycle is broken at its containers.

    Cycles are strongly connected components of the `parts` relation. They arise by mutation, so most have a container
    that can be made empty. Raises NotImplementedError for others, such as an exception among its own arguments.
    """
    values = list(values)
    made_empty: set[int] = set()
    for component in cyclic_components(values, parts):
        breaks = [value for value in component if can_be_made_empty(value)]
        if not breaks:
            raise NotImplementedError(
                "values contain each other in a cycle without a mutable container made in the trace"
            )
        made_empty.update(id(value) for value in breaks)
    plan = CreationPlan(made_empty=made_empty)
    plan.order = _post_order(values, lambda value: () if id(value) in made_empty else parts(value))
    return plan


def _post_order(roots: Iterable[TracedValue], edges: Edges) -> list[TracedValue]:
    order: list[TracedValue] = []
    seen: set[int] = set()
    stack: list[tuple[TracedValue, bool]] = [(root, False) for root in roots][::-1]
    while stack:
        value, children_done = stack.pop()
        if children_done:
            order.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            stack.append((value, True))
            stack.extend((child, False) for child in reversed(list(edges(value))) if id(child) not in seen)
    return order


def cyclic_components(roots: Iterable[TracedValue], edges: Edges) -> list[list[TracedValue]]:
    """The strongly connected components with a cycle (Tarjan 1972, with an explicit stack)."""
    state = _Tarjan(edges)
    for root in roots:
        if id(root) not in state.index:
            state.visit(root)
    return state.components


class _Tarjan:
    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        self.index: dict[int, int] = {}
        self.low: dict[int, int] = {}
        self.path: list[TracedValue] = []
        self.on_path: set[int] = set()
        self.components: list[list[TracedValue]] = []

    def visit(self, root: TracedValue) -> None:
        work = [(root, self._enter(root))]
        while work:
            value, children = work[-1]
            child = next(children, None)
            if child is None:
                work.pop()
                self._leave(value)
                if work:
                    parent = id(work[-1][0])
                    self.low[parent] = min(self.low[parent], self.low[id(value)])
            elif id(child) not in self.index:
                work.append((child, self._enter(child)))
            elif id(child) in self.on_path:
                self.low[id(value)] = min(self.low[id(value)], self.index[id(child)])

    def _enter(self, value: TracedValue) -> Iterator[TracedValue]:
        self.index[id(value)] = self.low[id(value)] = len(self.index)
        self.path.append(value)
        self.on_path.add(id(value))
        return iter(self.edges(value))

    def _leave(self, value: TracedValue) -> None:
        if self.low[id(value)] != self.index[id(value)]:
            return
        component: list[TracedValue] = []
        while not component or component[-1] is not value:
            component.append(self.path.pop())
            self.on_path.discard(id(component[-1]))
        if len(component) > 1 or any(child is value for child in self.edges(value)):
            self.components.append(component)

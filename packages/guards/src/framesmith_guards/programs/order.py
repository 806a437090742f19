"""The order of a check: a tree of sources over shared prefixes, walked cheap and likely misses first.

A source is loaded once, after every check on its base has held; so evaluating it is safe whenever those checks
make it so. A guard relating several sources comes after all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from framesmith_guards.guard import Guard
from framesmith_guards.sources import LocalSource, Source

_FAR = 4  # the price of a step away from the arguments, in units of a kind's cost
_STABLE_ROOT = 8  # values behind globals, closures and modules change seldom


@dataclass(eq=False)
class Node:
    """A source in the tree, with the guards on it alone, and the sources loaded from it."""

    source: Source
    guards: list[Guard] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    extracted: bool = False

    @property
    def price(self) -> int:
        """The order of visits: by the cheapest check at or under this node, its depth and how stable its root is."""
        own = min((guard.kind.cost for guard in self.guards), default=2)
        stable = 0 if isinstance(self.source.root, LocalSource) else _STABLE_ROOT
        return own + stable + _FAR * self.source.depth


@dataclass(eq=False)
class Relation:
    """A guard on several sources, ready when all of them are loaded."""

    guard: Guard
    waiting: int


Step = Node | Guard
"""Load this source and check its own guards; or check a relation whose sources are all loaded."""


@dataclass(frozen=True)
class Plan:
    """The steps of a check: compare the global state, then take the steps in order."""

    state: tuple[Guard, ...]
    steps: tuple[Step, ...]

    @property
    def guards(self) -> Iterator[Guard]:
        """All guards in the order in which they are checked."""
        yield from self.state
        for step in self.steps:
            yield from step.guards if isinstance(step, Node) else (step,)


def plan(guards: Iterable[Guard], extracted: Iterable[Source] = ()) -> Plan:
    """Order `guards`, and the loading of `extracted` sources, into one walk."""
    wanted = dict.fromkeys(guards)
    state = tuple(guard for guard in wanted if guard.kind.about_state)
    nodes: dict[Source, Node] = {}
    relations: list[Relation] = []
    for guard in wanted:
        if guard.kind.about_state:
            continue
        sources = dict.fromkeys(guard.operands if guard.kind.only_relates else (guard.source, *guard.operands))
        owners = [_node(source, nodes) for source in sources]
        if guard.operands or not owners:
            relation = Relation(guard, len(owners))
            relations.append(relation)
            for owner in owners:
                owner.relations.append(relation)
        else:
            owners[0].guards.append(guard)
    for source in extracted:
        _node(source, nodes).extracted = True
    return Plan(state, tuple(_walk(nodes, relations)))


def _node(source: Source, nodes: dict[Source, Node]) -> Node:
    known = nodes.get(source)
    if known is None:
        known = nodes[source] = Node(source)
        if source.base is not None:
            _node(source.base, nodes).children.append(known)
    return known


def _walk(nodes: dict[Source, Node], relations: list[Relation]) -> Iterator[Step]:
    serial = count()
    ready: list[tuple[int, int, Step]] = []

    def push(price: int, step: Step) -> None:
        heapq.heappush(ready, (price, next(serial), step))

    for node in nodes.values():
        if node.source.base is None:
            push(node.price, node)
    for relation in relations:
        if not relation.waiting:
            push(relation.guard.kind.cost, relation.guard)
    while ready:
        _, _, step = heapq.heappop(ready)
        yield step
        if not isinstance(step, Node):
            continue
        for child in step.children:
            push(child.price, child)
        for relation in step.relations:
            relation.waiting -= 1
            if not relation.waiting:
                push(relation.guard.kind.cost, relation.guard)

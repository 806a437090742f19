"""Fusion: definitions gathered into groups that become one kernel each, and the order of groups and calls.

A group has one domain, `sizes`, some axes of which are reduced, or scanned. A member is full (it runs over the whole
domain) or outer (over the axes that are not reduced). A definition joins a group if its domain refines
with the group's, it reads the group's members only at the point it is at itself, and no path leads from
the group out and back to it.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from framesmith_backends.ir.expr import cost, loads
from framesmith_backends.ir.program import Call, Def, Program
from framesmith_backends.ir.symbolic.size import hint, numel
from framesmith_backends.schedule.fusion.domains import Sizes
from framesmith_backends.schedule.fusion.placement import (
    Flags,
    is_too_serial,
    placement,
    why_not_same_point,
    why_not_scanned,
)
from framesmith_guards.torch_adapter import aten

# Beyond these a kernel is too large to be worth growing.
MOST_MEMBERS, MOST_COST = 48, 2500
#: Results of so many elements do not share a kernel for a buffer with less than this part of them.
FEWEST_SEPARATE, SHARED = 1 << 16, 16
#: Reductions of fewer elements share a kernel though they read no buffer in common: a launch takes longer than they do.
FEW_REDUCED = 1 << 16


@dataclass(slots=True, eq=False)
class Group:
    """Members in order; `reduced` has a flag for each axis, or is None while nothing is reduced or scanned.

    With `down`, flags of other axes, some members are reduced along these instead, for each point of the rest.
    """

    number: int
    members: list[Def]
    sizes: Sizes
    reduced: Flags
    before: int = 0
    position: int = 0
    cost: int = 0
    down: Flags = None

    @property
    def reads(self) -> set[str]:
        """The buffers that its members read, their own among them."""
        return {load.source for d in self.members for load in loads(d.body)}

    @property
    def has_effects(self) -> bool:
        """Whether a member is a check, or updates another's buffer."""
        return any(d.failure is not None or d.updates is not None for d in self.members)


@dataclass(slots=True, eq=False)
class CallNode:
    """An ATen call as a node of the group graph."""

    number: int
    call: Call
    before: int = 0

    @property
    def position(self) -> int:
        return self.call.position


Node = Group | CallNode


@dataclass(slots=True)
class Grouping:
    """The group graph while it grows. `before` of a node is the bit set of node numbers it depends on.

    `users` are the nodes that need one directly, some perhaps by the number of a node that has been absorbed since, and
    `barriers` those that need every node before them. Whatever depends on a node does so through one of these: a graph
    has far more nodes than that.
    """

    program: Program
    nodes: dict[int, Node] = field(default_factory=dict)
    owner: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    users: dict[int, set[int]] = field(default_factory=dict)
    barriers: list[int] = field(default_factory=list)
    absorbed: dict[int, int] = field(default_factory=dict)
    count: int = 0
    positions: list[int] | None = None

    def users_of(self, node: Node) -> Iterable[Node]:
        """A few nodes that are there, those that need this one directly among them; all where that was not noted."""
        noted = self.users.get(node.number)
        if noted is None:
            return self.nodes.values()
        return (self.nodes[self.current(number)] for number in (*noted, *self.barriers))

    def are_of_one_stage(self, members: Iterable[Def]) -> bool:
        """Whether no member is recomputed in another stage than that of another member."""
        known = self.program.recomputed
        if not known or not any(d.position in known for d in members):
            return True
        return len({self._stage(d.position) for d in members}) == 1

    def is_recomputed_beside(self, host: Node, d: Def) -> bool:
        """Whether the definition is recomputed and nothing of the group is, or the other way round.

        Of the same operands, a recomputed value and a gradient would be in memory at once.
        """
        known = self.program.recomputed
        if not known or not isinstance(host, Group):
            return False
        own = d.position in known
        return all((member.position in known) is not own for member in host.members)

    def _stage(self, position: int) -> int:
        """The stage of the last recomputed node up to there."""
        if self.positions is None:
            self.positions = [*self.program.recomputed]
        at = bisect.bisect_right(self.positions, position)
        return 0 if at == 0 else self.program.recomputed[self.positions[at - 1]]

    def current(self, number: int) -> int:
        """The number under which the node is known by now."""
        while number in self.absorbed:
            number = self.absorbed[number]
        return number


def group(program: Program) -> list[Node]:
    """All definitions and calls of the program as nodes, in an order in which they can run."""
    g = Grouping(program)
    items: list[Def | Call] = [*program.defs.values(), *program.calls.values()]
    effect: CallNode | None = None
    for item in sorted(items, key=lambda i: i.position):
        if isinstance(item, Call):
            effect = _add_call(g, item, effect)
        else:
            _add_def(g, item)
    return ordered(g)


def _add_call(g: Grouping, call: Call, effect: CallNode | None) -> CallNode | None:
    """Add a call; calls with effects keep their order among themselves, and mutations come after all before."""
    node = CallNode(g.count, call)
    g.count += 1
    g.users[node.number] = set()
    node.before = _closure(g, node, (*call.needs, *g.program.numbers_for(call))) & ~(1 << node.number)
    if call.effect:
        if effect is not None:
            node.before |= 1 << effect.number | effect.before
            g.users[effect.number].add(node.number)
        schema = getattr(call.node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            g.barriers.append(node.number)
            node.before |= sum(1 << n for n in g.nodes)
        effect = node
    g.nodes[node.number] = node
    g.owner[call.name] = node.number
    return effect


def _closure(g: Grouping, user: Node, names: Sequence[str]) -> int:
    """All that the node depends on because it needs these; it is noted as their user."""
    bits = 0
    for name in names:
        owner = g.owner.get(name)
        if owner is not None:
            bits |= 1 << owner | g.nodes[owner].before
            if owner != user.number:
                g.users[owner].add(user.number)
    return bits


def _sources(program: Program, d: Def) -> list[str]:
    """The buffers and numbers that a definition reads, each once."""
    return [*dict.fromkeys(load.source for load in loads(d.body)), *program.numbers_for(d)]


def _add_def(g: Grouping, d: Def) -> None:
    sources = _sources(g.program, d)
    for number in _candidates(g, d, sources):
        host = g.nodes[number]
        if not isinstance(host, Group) or (d.name in g.program.alone and not _checks_only(host, d)):
            continue
        if why_not_join(g, host, d, sources) is None:
            _join(g, host, d, sources)
            _merge_others(g, host, sources)
            return
    fresh = Group(g.count, [d], tuple(v.size for v in d.domain), None, position=d.position)
    g.users[fresh.number] = set()
    fresh.before = _closure(g, fresh, sources)
    if d.in_rows:
        fresh.reduced = tuple(v in d.in_rows for v in d.domain)
    g.nodes[fresh.number] = fresh
    g.count += 1
    _register(g, fresh, d, sources)


def stored_names(program: Program, nodes: Sequence[Node]) -> frozenset[str]:
    """Definitions that need memory: those kept, and those a kernel other than their own reads."""
    owner = {d.name: node for node in nodes if isinstance(node, Group) for d in node.members}
    stored = set(program.kept)
    for d in program.defs.values():
        for load in loads(d.body):
            if load.source in owner and owner[load.source] is not owner[d.name]:
                stored.add(load.source)
    return frozenset(stored)


def _checks_only(host: Group, d: Def) -> bool:
    """Whether the group holds only checks, of all points of a definition that updates another's buffer."""
    return d.updates is not None and all(m.failure is not None and m.domain == d.domain for m in host.members)


def _is_closed(g: Grouping, host: Group) -> bool:
    """Whether the group has a definition that is never fused."""
    return not g.program.alone.isdisjoint(member.name for member in host.members)


def _register(g: Grouping, host: Group, d: Def, sources: list[str]) -> None:
    g.owner[d.name] = host.number
    host.cost += cost(d.body)
    host.position = max(host.position, d.position)
    for source in sources:
        g.readers.setdefault(source, []).append(host.number)


def _candidates(g: Grouping, d: Def, sources: list[str]) -> list[int]:
    """Return candidates for fusion: producers of its operands, latest first, then other readers of the same buffers.

    Small reductions also share a kernel with those of other buffers that the same kernel has made: second halves of
    what was cut.
    """
    producers = {g.owner[s] for s in sources if s in g.owner}
    siblings = {n for s in sources if _is_worth_sharing(g, s, d) for n in g.readers.get(s, ())} - producers
    siblings = {n for n in siblings if not g.is_recomputed_beside(g.nodes[n], d)}
    if d.reduced and hint(numel(v.size for v in d.domain)) < FEW_REDUCED:
        made = {m.name for n in producers if isinstance(host := g.nodes[n], Group) for m in host.members}
        siblings |= {n for name in made for n in g.readers.get(name, ())} - producers
    return sorted(producers, reverse=True) + sorted(siblings, reverse=True)[:4]


def _is_worth_sharing(g: Grouping, source: str, d: Def) -> bool:
    """Whether a buffer is large enough to read it once for two results that have nothing else in common.

    What is computed in one kernel is in memory at once.
    """
    elements = hint(d.layout.numel)
    known = g.program.layouts.get(source)
    return elements < FEWEST_SEPARATE or known is None or hint(known.numel) * SHARED >= elements


def why_not_join(g: Grouping, host: Group, d: Def, sources: list[str]) -> str | None:
    """Why the definition cannot become a member of the group, or None."""
    if _is_closed(g, host):
        return "the group is a kernel of its own"
    if not g.are_of_one_stage((*host.members, d)):
        return "a checkpoint is recomputed later"
    if len(host.members) >= MOST_MEMBERS or host.cost + cost(d.body) > MOST_COST:
        return "the group is large enough"
    for source in sources:
        owner = g.owner.get(source)
        if owner is not None and owner != host.number and g.nodes[owner].before >> host.number & 1:
            return f"it needs {source}, which needs the group"
    placed = placement(host.sizes, host.reduced, d)
    if placed is None:
        return "its domain does not fit the group's"
    sizes, reduced = placed
    if host.reduced is None and is_too_serial(sizes, reduced):
        return "the group would lose its parallel loops"
    scanned = why_not_scanned(g.program, [*host.members, d], reduced)
    return scanned or why_not_same_point(host.members, d, sizes, reduced)


def _join(g: Grouping, host: Group, d: Def, sources: list[str]) -> None:
    placed = placement(host.sizes, host.reduced, d)
    assert placed is not None
    host.sizes, host.reduced = placed
    host.members.append(d)
    _register(g, host, d, sources)
    own = 1 << host.number
    _extend(g, host, _closure(g, host, sources) & ~own)


def _extend(g: Grouping, host: Group, bits: int) -> None:
    """The group now also depends on `bits`, and so do all nodes that depend on the group."""
    known, host.before = host.before, host.before | bits
    if host.before != known:
        for node in _dependents(g, host):
            node.before |= host.before


def _dependents(g: Grouping, host: Node) -> Iterable[Node]:
    found: dict[int, Node] = {}
    waiting = [host]
    while waiting:
        for user in g.users_of(waiting.pop()):
            if user.number not in found and user.before >> host.number & 1:
                found[user.number] = user
                waiting.append(user)
    return found.values()


def _is_needed(g: Grouping, node: Node) -> bool:
    return any(user.before >> node.number & 1 for user in g.users_of(node))


def _merge_others(g: Grouping, host: Group, sources: list[str]) -> None:
    for number in sorted({g.owner[s] for s in sources if s in g.owner} - {host.number}, reverse=True):
        other = g.nodes[number]
        if isinstance(other, Group) and why_not_merge(g, host, other) is None:
            merge(g, host, other)


def why_not_merge(g: Grouping, host: Group, other: Group) -> str | None:
    if _is_closed(g, host) or _is_closed(g, other):
        return "a kernel of its own"
    if not g.are_of_one_stage((*host.members, *other.members)):
        return "a checkpoint is recomputed later"
    if len(host.members) + len(other.members) > MOST_MEMBERS or host.cost + other.cost > MOST_COST:
        return "together too large"
    if other.before >> host.number & 1:
        return "the other group needs this one"
    if is_between(g, host, other):
        return "something between the two"
    placed = _placed_together(host, other)
    if placed is None:
        return "domains do not fit"
    sizes, reduced = placed
    if is_too_serial(sizes, reduced):
        return "the group would lose its parallel loops"
    everyone = [*other.members, *host.members]
    problems = (why_not_same_point(everyone, member, sizes, reduced) for member in everyone)
    return why_not_scanned(g.program, everyone, reduced) or next(filter(None, problems), None)


def _placed_together(host: Group, other: Group) -> tuple[Sizes, Flags] | None:
    """The group's sizes and flags with the members of the other one; None if the domains do not fit."""
    placed: tuple[Sizes, Flags] | None = (host.sizes, host.reduced)
    for member in other.members:
        placed = None if placed is None else placement(*placed, member)
    return placed


def is_between(g: Grouping, host: Group, other: Group) -> bool:
    """Whether the group needs something else that needs the other one."""
    # The first step of a way from the other one to the group is a direct user; all others on it come before the group.
    return any(
        host.before >> user.number & 1 and user.before >> other.number & 1
        for user in g.users_of(other)
        if user is not other and user is not host
    )


def merge(g: Grouping, host: Group, other: Group) -> None:
    placed = _placed_together(host, other)
    assert placed is not None
    host.sizes, host.reduced = placed
    host.members = [*other.members, *host.members]
    absorb(g, host, other)


def absorb(g: Grouping, host: Group, other: Group) -> None:
    """The other group is gone, its members are the host's."""
    host.cost += other.cost
    for member in other.members:
        g.owner[member.name] = host.number
    gone, own = 1 << other.number, 1 << host.number
    needed = _is_needed(g, host) or any(user is not host for user in g.users_of(other))
    host.before = (host.before | other.before) & ~gone & ~own
    for source in dict.fromkeys(name for member in other.members for name in _sources(g.program, member)):
        if source in g.readers:
            g.readers[source] = [host.number if n == other.number else n for n in g.readers[source]]
    if needed:
        for node in g.nodes.values():
            if node is not host and (node.before & (gone | own)):
                node.before = (node.before | host.before | own) & ~gone
    del g.nodes[other.number]
    if other.number in g.users:
        g.users[host.number] |= g.users.pop(other.number)
        g.absorbed[other.number] = host.number


def ordered(g: Grouping) -> list[Node]:
    """Nodes so that each comes after all it depends on; otherwise in the order of the graph."""
    waiting = sorted(g.nodes.values(), key=lambda n: n.position)
    done = 0
    found: list[Node] = []
    while waiting:
        ready = next((n for n in waiting if not n.before & ~done), None)
        if ready is None:
            raise RuntimeError("fusion made a cycle between kernels")
        waiting.remove(ready)
        found.append(ready)
        done |= 1 << ready.number
    return found


def with_counts_together(nodes: Sequence[Node], program: Program) -> list[Node]:
    """The nodes with single numbers that are made of inputs, for copies onto inputs alone, in few kernels.

    Counts of steps and of batches are such. Each is a launch otherwise. They run before the first of all
    copies: any may write to what they read.
    """
    others = [call for call in program.calls.values() if call.node.target is not aten.copy_.default]
    seen = {load.source for d in program.defs.values() for load in loads(d.body)}
    seen.update(name for call in others for name in call.needs)
    seen.update(name for name in program.outputs if isinstance(name, str))
    counts = [node for node in nodes if isinstance(node, Group) and _is_count(node, program, seen)]
    if len(counts) < 2:
        return list(nodes)
    parts = [counts[k : k + MOST_MEMBERS] for k in range(0, len(counts), MOST_MEMBERS)]
    merged = [replace(part[0], members=[m for node in part for m in node.members]) for part in parts]
    rest = [node for node in nodes if node not in counts]
    first = next(k for k, node in enumerate(rest) if isinstance(node, CallNode) and node.call.effect)
    return [*rest[:first], *merged, *rest[first:]]


def _is_count(node: Group, program: Program, seen: Collection[str]) -> bool:
    """Whether the group's numbers are made of inputs and read by copies alone."""
    if node.sizes or node.has_effects or any(m.buffer is not None for m in node.members):
        return False
    read = node.reads.union(*(program.numbers_for(m) for m in node.members))
    return read <= {*program.inputs} and not any(m.name in seen for m in node.members)

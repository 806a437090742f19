"""Splits a recorded backward pass into steps: segments of pure calls, and opaque calls between them.

Note [Deferring]: writes to `.grad`, and the hooks that follow them, move to the end of their segment. The next other
user code ends it, as it may read `.grad` (only no unpack hook is expected to). No pure call does, and a hook that
mutates a leaf there (an optimizer in the backward pass) can only run later than in the engine, never earlier.

Note [Partial writes]: after the derivative of an in-place mutation of a view, part of a gradient is overwritten in
place. Within the segment that computed the gradient, that is a mutation of an intermediate. After user code in between,
it would mutate an input of the next segment that shares memory with another: then it is a step by itself.

Note [Traced calls]: user code without side effects is part of a segment (`segments.user_code`, Note [User code]). What
it reads is guarded when its segment begins. So other user code ends a segment with a traced call, and a hook after
accumulation that was deferred comes before the next traced call. That a call cannot be traced is found when its segment
is traced: the steps are then planned again, and those that have run are still the first ones.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass, field

from torch import fx

from framesmith_autograd_compiler import calls


@dataclass
class Segment:
    """Pure calls, in order, the nodes they read from outside and those read outside."""

    nodes: list[fx.Node]
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)


@dataclass(frozen=True)
class Opaque:
    """One call that runs uncompiled: of `calls.OPAQUE`, of a leaf's hook, an item of its results, a partial write."""

    node: fx.Node


@dataclass(frozen=True)
class Accumulation:
    """One write to a leaf's `.grad`: see `calls.is_accumulation`."""

    node: fx.Node


Step = Segment | Opaque | Accumulation


def schedule(graph: fx.Graph, traced: Collection[fx.Node] = (), open_calls: Collection[fx.Node] = ()) -> list[Step]:
    """Return the steps, in an order that respects every dependency and the order of the user's hooks.

    `traced`: calls of user code that are pure; `open_calls`: those of them that read what writes to `.grad` change. The
    steps before the segment of a traced call stay the same when it is no longer traced: see Note [Traced calls].
    """
    planner = _Planner(traced, open_calls)
    for node in graph.nodes:
        if node.op == "call_function":
            planner.add(node)
    planner.flush()
    for step in planner.steps:
        if isinstance(step, Segment):
            _close(step)
    return planner.steps


def last_uses(graph: fx.Graph, steps: list[Step]) -> list[list[fx.Node]]:
    """Return, for each step, the nodes whose values no later step needs."""
    last: dict[fx.Node, int] = {}
    for number, step in enumerate(steps):
        nodes = [*step.inputs, *step.nodes] if isinstance(step, Segment) else [*step.node.all_input_nodes, step.node]
        last.update((node, number) for node in nodes)
    results = next(iter(reversed(graph.nodes))).all_input_nodes
    uses: list[list[fx.Node]] = [[] for _ in steps]
    for node, number in last.items():
        if node not in results:
            uses[number].append(node)
    return uses


class _Planner:
    def __init__(self, traced: Collection[fx.Node], open_calls: Collection[fx.Node]) -> None:
        self._traced = traced
        self._open_calls = open_calls
        self._holds_traced = False
        self.steps: list[Step] = []
        self._pure: list[fx.Node] = []
        self._pending: set[fx.Node] = set()
        self._deferred: list[Step] = []
        self._opaque: set[fx.Node] = set()

    def add(self, node: fx.Node) -> None:
        if calls.is_accumulation(node):
            self._deferred.append(Accumulation(node))
        elif node.target is calls.call_leaf_hook:
            self._deferred.append(Opaque(node))
        elif node in self._traced:
            if self._sees_deferred(node):
                self.flush()
            self._add_pure(node)
            self._holds_traced = True
        elif node.target in calls.OPAQUE:
            waits = any(source in self._pending for source in node.all_input_nodes)
            if waits or self._holds_traced or self._may_see_deferred(node):
                self.flush()
            self._add_opaque(node)
        elif node.target is calls.copy_slices_epilogue and node.args[1] not in self._pending:
            # It would write to an input of the next segment: see Note [Partial writes].
            self.flush()
            self._add_opaque(node)
        elif node.target is operator.getitem and node.args[0] in self._opaque:
            self._add_opaque(node)
        else:
            self._add_pure(node)

    def _add_pure(self, node: fx.Node) -> None:
        self._pure.append(node)
        self._pending.add(node)

    def _sees_deferred(self, node: fx.Node) -> bool:
        """Whether a traced call, or its guards, may read what deferred steps change."""
        if node in self._open_calls:
            return bool(self._deferred)
        return any(isinstance(step, Opaque) for step in self._deferred)

    def _may_see_deferred(self, node: fx.Node) -> bool:
        """Whether an opaque call may depend on deferred steps: an unpack hook sees other hooks alone."""
        if node.target is not calls.call_unpack_hook:
            return bool(self._deferred)
        return any(isinstance(step, Opaque) for step in self._deferred)

    def _add_opaque(self, node: fx.Node) -> None:
        self._opaque.add(node)
        self.steps.append(Opaque(node))

    def flush(self) -> None:
        if self._pure:
            self.steps.append(Segment(self._pure))
        self.steps += self._deferred
        self._pure, self._pending, self._deferred = [], set(), []
        self._holds_traced = False


def _close(segment: Segment) -> None:
    inside = set(segment.nodes)
    sources = (source for node in segment.nodes for source in node.all_input_nodes)
    segment.inputs = [source for source in dict.fromkeys(sources) if source not in inside]
    segment.outputs = [node for node in segment.nodes if any(user not in inside for user in node.users)]

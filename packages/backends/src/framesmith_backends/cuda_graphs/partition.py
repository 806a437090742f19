"""A graph partitioned into captured and other parts, in an order in which there are few of them: Note [Parts].

Note [Parts] (docs/design/gpu/0029)
What cannot be captured (work on the CPU, `.item()`, unbacked sizes) would keep its whole graph from it. So each part is
a graph of its own, lowered and scheduled by itself, captured if all its calls can be.

A call comes after what it takes, effects of one kind (random numbers of one device, writes and checks) keep their
order, a write comes after all that reads the same memory, and after all that may fail. Among these orders, one that
goes on with one kind of part for as long as any call is ready has fewest parts, but for which kind comes first: both
are tried.

A part takes no view beside its base, but takes the view again: its inputs share no memory.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from framesmith_aten import operators as ops
from framesmith_aten.contract import BoxedFn
from framesmith_aten.graphs.control_flow import BODIES
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.nodes import is_pure, may_fail, view_source
from framesmith_aten.graphs.numbers import FUNCTIONS, LAYOUT_QUERIES
from framesmith_aten.nested import tensors_in
from framesmith_backends.cuda_graphs.capturable import (
    base_of,
    why_not_by_itself,
    why_not_call,
    why_unbacked,
    written_by,
)  # fmt: skip
from framesmith_backends.launch.source import executed
from framesmith_guards.torch_adapter import OpOverload

#: A part with fewer launches runs as ever: what a replay costs by itself, they cost too.
FEWEST_LAUNCHES = 4
#: Parts of so many calls are not asked how many launches they are.
SURELY_ENOUGH = 64


@dataclass(frozen=True, slots=True)
class Part:
    """A graph of its own: what it takes and gives are values of the whole graph by name. `why` it is not captured."""

    graph: fx.GraphModule
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    why: str | None

    def text(self) -> str:
        count = sum(node.op == "call_function" for node in self.graph.graph.nodes)
        how = "captured" if self.why is None else f"not captured: {self.why}"
        return f"{', '.join(self.takes)} -> {', '.join(self.gives)}: {count} nodes, {how}"


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that make up a part, and why they are not captured."""

    nodes: tuple[fx.Node, ...]
    why: str | None


def partition(gm: fx.GraphModule, device: torch.device, launches: Callable[[fx.GraphModule], int]) -> list[Part] | None:
    """The graph in parts, in order; None where no part would be captured.

    `launches` counts those of a part of few calls.
    """
    if any(_is_unmovable_view_of_written(node) for node in gm.graph.nodes):
        return None
    dependencies = _Dependencies(gm)
    reasons = {node: why_not_by_itself(node, device) for node in dependencies.calls}
    enough: set[tuple[fx.Node, ...]] = set()
    while None in reasons.values():
        builder = _PartBuilder(gm, dependencies.in_order(reasons), dependencies)
        small: list[fx.Node] = []
        for at, calls in enumerate(builder.parts):
            if calls.why is not None or calls.nodes in enough:
                continue
            if len(calls.nodes) < SURELY_ENOUGH and launches(builder.part(at).graph) < FEWEST_LAUNCHES:
                small += calls.nodes
            else:
                enough.add(calls.nodes)
        if not small:
            return [builder.part(at) for at in range(len(builder.parts))]
        for node in small:
            if node in reasons:
                reasons[node] = f"{node.name} is one of fewer than {FEWEST_LAUNCHES} launches"
    return None


def _is_unmovable_view_of_written(node: fx.Node) -> bool:
    """Whether the node is a view of memory that is written to, and cannot be taken again in each part."""
    if not ops.is_view(node.target) or is_repeatable_view(node):
        return False
    base = base_of(node)
    return any(base in written_by(other) for other in node.graph.nodes)


class _Dependencies:
    """The order that dependencies and effects require.

    `calls` are the nodes that a part is made of. Others go with them: views and constants with whatever takes them,
    items of several results with the call that gives these.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self._sources: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in gm.graph.nodes:
            own = node.op == "call_function" and not (is_item(node) or is_repeatable_view(node))
            self._sources[node] = frozenset([node]) if own else self.sources(node.all_input_nodes)
        self.positions = {node: at for at, node in enumerate(gm.graph.nodes)}
        self.calls: list[fx.Node] = []
        self.numbers: list[fx.Node] = []
        for node in gm.graph.nodes:
            if node in self._sources[node]:
                (self.numbers if _is_plain_number(node) else self.calls).append(node)
        order = _Effects()
        self.before = {
            node: self.sources(node.all_input_nodes) | order.before(node)
            for node in sorted([*self.calls, *self.numbers], key=self.positions.__getitem__)
        }

    def sources(self, nodes: Iterable[fx.Node]) -> frozenset[fx.Node]:
        """The calls that give these values, or what they are views of."""
        return frozenset[fx.Node]().union(*map(self._sources.__getitem__, nodes))

    def in_order(self, reasons: dict[fx.Node, str | None]) -> list[Calls]:
        """The calls in order, divided between those with a reason not to be captured and the others."""
        found = [_Ordering(self, reasons).beginning_with(capturable) for capturable in (True, False)]
        return min(found, key=lambda parts: (len(parts), sum(part.why is None for part in parts)))


@dataclass(slots=True)
class _Effects:
    """The effects so far: the last of each kind, and the nodes that have touched each memory."""

    last: dict[object, fx.Node] = field(default_factory=dict)
    touched: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    written: dict[fx.Node, fx.Node] = field(default_factory=dict)
    failing: list[fx.Node] = field(default_factory=list)

    def before(self, node: fx.Node) -> set[fx.Node]:
        """The nodes that come before the next node by effects, not by operands; notes the node."""
        found: set[fx.Node] = set()
        for kind in _effects(node):
            found.update(self.last.values() if kind is ANY else _present(self.last, (kind, ANY)))
            self.last[kind] = node
        bases = set(map(base_of, node.all_input_nodes))
        found.update(_present(self.written, bases))
        targets = set(written_by(node))
        if targets or ops.is_mutable(node.target):
            found.update(self.failing, *(self.touched.get(target, ()) for target in targets))
            self.written.update(dict.fromkeys(targets, node))
        for base in bases | targets:
            self.touched.setdefault(base, []).append(node)
        if may_fail(node) or ANY in _effects(node):
            self.failing.append(node)
        return found - {node}


#: The effect of what nothing is known of.
ANY = "any"


def _effects(node: fx.Node) -> list[object]:
    """Kinds of effects; of each kind they keep their order, and of one that may be any with all others."""
    op = node.target
    if op in FUNCTIONS or not ops.is_effect(op) or (op in BODIES and is_pure(node)):
        return []
    if not isinstance(op, OpOverload) or ops.is_custom(op):
        return [ANY]
    if not ops.is_random(op):
        return ["writes"]
    if ops.arguments(op, node.args, node.kwargs).get("generator") is not None:
        return [ANY]
    tensors = tensors_in([one.meta.get("val") for one in (node, *node.all_input_nodes)])
    device = next((str(tensor.device) for tensor in tensors), ANY)
    return [device, *(["writes"] if ops.is_mutable(op) or ops.row(op).statistics else [])]


def _present(found: dict[Any, fx.Node], keys: Iterable[object]) -> list[fx.Node]:
    return [found[key] for key in keys if key in found]


class _Ordering:
    """Calls in an order that goes on with those that are captured, or that are not, while there are any."""

    def __init__(self, dependencies: _Dependencies, reasons: dict[fx.Node, str | None]) -> None:
        self.positions, self.reasons = dependencies.positions, reasons
        self.nodes = {at: node for node, at in self.positions.items()}
        self.missing = {node: len(before) for node, before in dependencies.before.items()}
        self.users: dict[fx.Node, list[fx.Node]] = {}
        for node, before in dependencies.before.items():
            for one in before:
                self.users.setdefault(one, []).append(node)
        self.ready: dict[bool, list[int]] = {True: [], False: []}
        self.loose: list[fx.Node] = []  # numbers, which are part of whatever comes next
        self._add([node for node, count in self.missing.items() if not count])

    def beginning_with(self, capturable: bool) -> list[Calls]:
        """All of them, those of that kind first."""
        found: list[list[fx.Node]] = []
        while any(self.ready.values()):
            if self.ready[capturable]:
                found.append([])
            while self.ready[capturable]:
                node = self.nodes[heapq.heappop(self.ready[capturable])]
                found[-1] += [*self.loose, node]
                self.loose.clear()
                self._add(self._released_by(node))
            capturable = not capturable
        if found:
            found[-1] += self.loose
        reasons = [next((why for node in nodes if (why := self.reasons.get(node))), None) for nodes in found]
        return [Calls(tuple(nodes), why) for nodes, why in zip(found, reasons, strict=True)]

    def _add(self, free: list[fx.Node]) -> None:
        """Notes nodes for which nothing is missing, and the numbers that are free with them."""
        while free:
            node = free.pop()
            if node in self.reasons:
                heapq.heappush(self.ready[self.reasons[node] is None], self.positions[node])
            else:
                self.loose.append(node)
                free += self._released_by(node)

    def _released_by(self, node: fx.Node) -> list[fx.Node]:
        users = self.users.get(node, ())
        for user in users:
            self.missing[user] -= 1
        return [user for user in users if not self.missing[user]]


class _PartBuilder:
    """Makes graphs of the parts. `home` is the part that gives a value."""

    def __init__(self, gm: fx.GraphModule, parts: Sequence[Calls], dependencies: _Dependencies) -> None:
        self.gm, self.parts = gm, parts
        self.home = {node: at for at, calls in enumerate(parts) for node in calls.nodes}
        for node in gm.graph.nodes:
            if is_item(node):
                self.home[node] = self.home[node.args[0]]
        self.results: list[list[fx.Node]] = [[] for _ in parts]
        self.wanted: list[list[fx.Node]] = [[] for _ in parts]  # in part i: values that are taken from there
        last = max((at for at, calls in enumerate(parts) if calls.why is not None), default=len(parts) - 1)
        for node in gm.graph.output_node().all_input_nodes:
            if node.op != "placeholder":
                made = [self.home[source] for source in dependencies.sources([node])]
                self.results[self.home.get(node, max(made, default=last))].append(node)
        self.needs = [self._needs(at) for at in range(len(parts))]
        for taken, _ in self.needs:
            for node in taken:
                if node in self.home:
                    self.wanted[self.home[node]].append(node)

    def _needs(self, at: int) -> tuple[set[fx.Node], set[fx.Node]]:
        """The inputs of the part, and the nodes of its graph."""
        own = [node for node, home in self.home.items() if home == at]
        inner, taken = {*own, *self.results[at]}, set[fx.Node]()
        stack = list(inner)
        while stack:
            for operand in stack.pop().all_input_nodes:
                if operand in inner or operand in taken:
                    continue
                if operand.op == "placeholder" or operand in self.home:
                    taken.add(operand)
                else:
                    inner.add(operand)
                    stack.append(operand)
        return taken, inner

    def part(self, at: int) -> Part:
        taken, inner = self.needs[at]
        nodes = list(self.gm.graph.nodes)
        takes = [node for node in nodes if node in taken]
        given = {*self.results[at], *self.wanted[at]}
        gives = [node for node in nodes if node in given]
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in takes:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in nodes:
            if node in inner:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in gives))
        names = tuple(node.name for node in takes), tuple(node.name for node in gives)
        return Part(new_module(self.gm, graph), *names, self.parts[at].why)


def is_item(node: fx.Node) -> bool:
    """Whether the node is one of several results of a call that is no view."""
    return node.target is operator.getitem and not is_repeatable_view(node)


def is_repeatable_view(node: fx.Node) -> bool:
    """Whether the node is a view, or several at once, that can be taken again wherever what it shows is known."""
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and view_source(node) is not None and is_repeatable_view(source)
    return view_source(node) is not None and why_not_call(node) is None and not may_fail(node)


def _is_plain_number(node: fx.Node) -> bool:
    """Whether the node gives a number computed from the sizes of the inputs."""
    return (node.target in FUNCTIONS or node.target in LAYOUT_QUERIES) and why_unbacked(node) is None


def in_sequence(gm: fx.GraphModule, parts: Sequence[Part], functions: Sequence[BoxedFn]) -> BoxedFn:
    """The whole graph: its parts by these functions. A value is dropped when the last part that takes it runs."""
    source, space = written_in_parts(gm, parts)
    return executed(source, space | {f"part{at}": function for at, function in enumerate(functions)})


def written_in_parts(gm: fx.GraphModule, parts: Sequence[Part]) -> tuple[str, dict[str, object]]:
    """(source of `call(args)`, its globals except for the functions `part0`, `part1`, ... of the parts)."""
    inputs = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    names = {name: f"v{at}" for at, name in enumerate([*inputs, *(name for part in parts for name in part.gives)])}
    output = gm.graph.output_node()
    last = {name: at for at, part in enumerate(parts) for name in part.takes}
    last |= {node.name: len(parts) for node in output.all_input_nodes}
    lines = [f"{_targets(names[name] for name in inputs)}args", "args.clear()"]
    lines += _dropped(names[name] for name in inputs if name not in last)
    for at, part in enumerate(parts):
        lines.append(f"taken = [{', '.join(names[name] for name in part.takes)}]")
        lines += _dropped(names[name] for name in part.takes if last[name] == at)
        lines.append(f"{_targets(names[name] for name in part.gives)}part{at}(taken)")
    space: dict[str, object] = {}
    texts = []
    for at, result in enumerate(output.args[0]):  # type: ignore[arg-type]
        if not isinstance(result, fx.Node):
            space[f"constant{at}"] = result
        texts.append(names[result.name] if isinstance(result, fx.Node) else f"constant{at}")
    lines.append(f"return [{', '.join(texts)}]")
    return "\n".join(["def call(args):", *(f"    {line}" for line in lines)]) + "\n", space


def _dropped(names: Iterable[str]) -> list[str]:
    text = ", ".join(names)
    return [f"del {text}"] if text else []


def _targets(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return f"[{text}] = " if text else ""

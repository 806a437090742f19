"""Nested compile regions: calls of a marked function that are equal become calls of one body.

Note [Regions]: a function marked by `torch.compiler.nested_compile_region` is traced like any other; the nodes recorded
meanwhile carry the number of the call. When the graph is finished, the nodes of each call are compared with those of
the others. Where calls are equal they leave the graph, which calls one body instead: it is compiled once. What a body
cannot hold (numbers read from its tensors, changes of modes or of older tensors, results that share memory) stays as it
was recorded, and so does a function that is called once.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aten.graphs.control_flow import invoke_subgraph
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.layouts import storage_id
from framesmith_aten.meta import CHECKPOINT, EFFECTS, EXAMPLE, LOCATION, MODE_CHANGE, REGION, Effects
from framesmith_aten.nested import tensors_in
from framesmith_aten.recording import effects_of
from framesmith_aten.symbolic import is_symbolic


def share_regions(graph: fx.Graph, bodies: dict[str, fx.GraphModule], known: Mapping[Hashable, str]) -> None:
    """Replace equal calls of regions by calls of one body, which is added to `bodies`.

    `known`: the names of bodies that are there already, by the keys of calls equal to them.
    """
    calls: defaultdict[int, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        if REGION.on(node):
            calls[REGION.of(node)].append(node)
    equal: defaultdict[Hashable, list[RegionCall]] = defaultdict(list)
    for nodes in calls.values():
        call = call_of(nodes)
        if call is not None:
            equal[call.key(bodies)].append(call)
    for key, group in equal.items():
        if len(group) == 1 and key not in known:
            continue
        name = known.get(key) or new_body(bodies, group[0])
        with graph.inserting_before(group[0].nodes[0]):
            held = held_body(graph, bodies, name)
        for call in group:
            call.replace_by(held)


def new_body(bodies: dict[str, fx.GraphModule], call: RegionCall) -> str:
    """Add the nodes of a call to `bodies` and return the body's name."""
    name = f"region_{len(bodies)}"
    bodies[name] = call.body(bodies)
    return name


def held_body(graph: fx.Graph, bodies: Mapping[str, fx.GraphModule], name: str) -> fx.Node:
    """Return a new node that holds a body."""
    held = graph.get_attr(name)
    EXAMPLE.set(held, bodies[name])
    return held


@dataclass(frozen=True)
class RegionCall:
    """The nodes that one call has recorded, and those of them that are used outside."""

    nodes: Sequence[fx.Node]
    results: Sequence[fx.Node]

    @property
    def operands(self) -> list[fx.Node]:
        """The nodes outside that these read; calls before may have been replaced there."""
        return _operands(dict.fromkeys(self.nodes))

    def key(self, bodies: Mapping[str, fx.GraphModule]) -> Hashable:
        """Return what equal calls have in common: operators, constants, and the ways between nodes."""
        return _key(self.operands, self.nodes, self.results, bodies)

    def body(self, bodies: dict[str, fx.GraphModule]) -> fx.GraphModule:
        graph = fx.Graph()
        inner: dict[fx.Node, fx.Node] = {}
        for node in self.operands:
            inner[node] = graph.placeholder(node.name)
            EXAMPLE.set(inner[node], EXAMPLE.get(node))
        for node in self.nodes:
            inner[node] = graph.node_copy(node, inner.__getitem__)
        graph.output(tuple(inner[node] for node in self.results))
        held = {str(node.target) for node in self.nodes if node.op == "get_attr"}
        return new_module({name: bodies[name] for name in held}, graph)

    def effects(self) -> Effects:
        """Return the effects of a call of the body."""
        found = Effects()
        for effects in map(effects_of, self.nodes):
            found.add_body(effects)
            found.random |= effects.random
            found.external |= effects.external
        return found

    def replace_by(self, held: fx.Node) -> None:
        """Replace the nodes by a call of a body."""
        graph = held.graph
        with graph.inserting_after(self.nodes[-1]):
            made = graph.call_function(invoke_subgraph, (held, *self.operands))
        EXAMPLE.set(made, tuple(EXAMPLE.of(node) for node in self.results))
        EFFECTS.set(made, self.effects())
        if LOCATION.on(self.nodes[0]):
            LOCATION.set(made, LOCATION.of(self.nodes[0]))
        inside, before = {*self.nodes}, made
        for index, node in enumerate(self.results):
            with graph.inserting_after(before):
                before = graph.call_function(operator.getitem, (made, index))
            before.meta = dict(node.meta)
            node.replace_all_uses_with(before, lambda user: user not in inside)
        for node in reversed(self.nodes):
            graph.erase_node(node)


def _key(
    operands: Sequence[fx.Node],
    nodes: Sequence[fx.Node],
    results: Sequence[fx.Node | None],
    bodies: Mapping[str, fx.GraphModule],
) -> Hashable:
    at = {node: index for index, node in enumerate((*operands, *nodes))}

    def target(node: fx.Node) -> Hashable:
        return _key_of(bodies[str(node.target)]) if node.op == "get_attr" else node.target

    found = [(node.op, target(node), _spelt((node.args, node.kwargs), at)) for node in nodes]
    return tuple(found), tuple([None if node is None else at[node] for node in results])


def _key_of(body: fx.GraphModule) -> Hashable:
    """Return what a body has in common with those that are equal to it."""
    operands = body.graph.find_nodes(op="placeholder")
    nodes = [node for node in body.graph.nodes if node.op not in ("placeholder", "output")]
    results: Any = body.graph.output_node().args[0]
    return _key(operands, nodes, results, dict(body.named_children()))  # type: ignore[arg-type]


def call_of(nodes: Sequence[fx.Node], results: Sequence[fx.Node] | None = None) -> RegionCall | None:
    """Return the nodes of one call as such, None where a body cannot hold them.

    `results`: the nodes that give its results; by default those that are used outside.
    """
    bodies = [one for node in nodes for one in node.all_input_nodes if one.op == "get_attr" and not REGION.on(one)]
    recorded = {*nodes}
    inside = dict.fromkeys([*bodies, *(node for node in nodes if not _is_number_of_others(node, recorded))])
    if not inside or not all(map(_may_be_inside, inside)):
        return None
    operands = _operands(inside)
    if results is None:
        results = [node for node in inside if any(user not in inside for user in node.users)]
    if not results or not all(isinstance(EXAMPLE.get(node), torch.Tensor) for node in results):
        return None
    older = {storage_id(fake) for node in operands for fake in _strided(EXAMPLE.get(node))}
    if any(storage_id(fake) in older for node in inside for fake in _strided(effects_of(node).written)):
        return None
    made = [storage_id(fake) for node in results for fake in _strided(EXAMPLE.of(node))]
    if len({*made}) < len(results) or older.intersection(made):
        return None
    return RegionCall([*inside], results)


def _operands(inside: Mapping[fx.Node, None]) -> list[fx.Node]:
    used = dict.fromkeys(one for node in inside for one in node.all_input_nodes)
    return [one for one in used if one not in inside]


def _is_number_of_others(node: fx.Node, recorded: Collection[fx.Node]) -> bool:
    """Whether a node is a number that the call has not computed from tensors of its own."""
    return is_symbolic(EXAMPLE.get(node)) and not any(
        one in recorded and not is_symbolic(EXAMPLE.get(one)) for one in node.all_input_nodes
    )


def _may_be_inside(node: fx.Node) -> bool:
    """Whether a body can hold a node."""
    if node.op not in ("call_function", "call_method", "get_attr") or MODE_CHANGE.get(node) or CHECKPOINT.on(node):
        return False
    return EXAMPLE.get(node) is not None and not is_symbolic(EXAMPLE.get(node))


def _strided(value: Any) -> list[torch.Tensor]:
    return [fake for fake in tensors_in(value) if fake.layout is torch.strided]


def _spelt(value: Any, at: dict[fx.Node, int]) -> Hashable:
    """Return an argument in a form that is equal for equal arguments of the same types."""
    if isinstance(value, fx.Node):
        return fx.Node, at[value]
    if isinstance(value, (tuple, list)):
        return type(value), tuple([_spelt(one, at) for one in value])
    if isinstance(value, dict):
        return dict, tuple([(key, _spelt(one, at)) for key, one in value.items()])
    if isinstance(value, slice):
        return slice, tuple([_spelt(one, at) for one in (value.start, value.stop, value.step)])
    return type(value), repr(value)

"""Writes to parts of an input, as copies onto these parts, where the graph makes a copy of all of it for each.

`cache[layer].index_copy_(...)` of a program arrives as a copy of the whole cache with that part replaced, copied onto
the input at the graph's end. Here who reads a part from such a copy reads what was written there, or the input.

Note [Versions]: an input as it is after some writes is a *version* of it: a list of (region, value), later ones over
earlier ones. A node that shows a region of a version reads the last value that holds the region, if no later one
may overlap it. What the graph's results show is left as it is: no two of them, and no input, get common memory here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.nodes import view_root, view_source
from framesmith_aten.layouts import has_stride
from framesmith_aten.operators import is_view, view_written
from framesmith_backends.rewrite import replacing
from framesmith_backends.rewrite.regions import Region, Step, part_written, step_of
from framesmith_backends.rewrite.replacing import Copies
from framesmith_guards.torch_adapter import aten


@dataclass(frozen=True, slots=True)
class Write:
    """A region of an input, and the node whose value it gets."""

    region: Region
    value: fx.Node


@dataclass(frozen=True, slots=True)
class Version:
    """A region of an input as it is after some writes, the last one last."""

    region: Region
    writes: tuple[Write, ...] = ()


def write_parts(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such writes as copies onto parts; the same graph if it has none."""
    if not any(view_written(node.target) is not None for node in gm.graph.nodes):
        return gm
    known = _versions(gm.graph)
    ends = gm.graph.find_nodes(op="call_function", target=aten.copy_.default)
    parts = {end: writes for end in ends if (writes := _parts(end, ends, known))}
    if not parts:
        return gm
    inputs, shown = {end.args[0] for end in parts}, _seen_in_results(gm.graph)
    rewriting = _Rewriting(ends, known, parts)
    instead: dict[fx.Node, replacing.Write] = {
        node: rewriting.read
        for node, version in known.items()
        if version.writes and version.region.root in inputs and node not in shown
    }
    instead |= dict.fromkeys(ends, replacing.dropped) | {gm.graph.output_node(): rewriting.write}
    return new_module(gm, replacing.replaced(gm.graph, instead))


def _versions(graph: fx.Graph) -> dict[fx.Node, Version]:
    """The nodes that show a region of a version of an input."""
    known: dict[fx.Node, Version] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor):
            known[node] = Version(Region(node))
        elif node.op == "call_function":
            found = _shown(node, known) or _written(node, known)
            if found is not None:
                known[node] = found
    return known


def _shown(node: fx.Node, known: dict[fx.Node, Version]) -> Version | None:
    found = step_of(node)
    if found is None or found[0] not in known:
        return None
    whole = known[found[0]]
    return Version(whole.region.then(found[1]), whole.writes)


def _written(node: fx.Node, known: dict[fx.Node, Version]) -> Version | None:
    found = part_written(node)
    if found is None or found[0] not in known:
        return None
    source, value, step = found
    whole = known[source]
    region = whole.region.then(step)
    within = known.get(value)
    if within is not None and within.region == region and within.writes[: len(whole.writes)] == whole.writes:
        added = within.writes[len(whole.writes) :]  # what is put back was written to meanwhile
        if all(write.region.lies_in(region) for write in added):
            return Version(whole.region, within.writes)
    return Version(whole.region, (*whole.writes, Write(region, value)))


def _parts(end: fx.Node, ends: Sequence[fx.Node], known: dict[fx.Node, Version]) -> list[Write]:
    """The writes to parts of an input that a copy onto it at the graph's end comes to; none where it stays whole."""
    target, source = end.args[:2]
    if end.kwargs or len(end.args) != 2 or not isinstance(target, fx.Node) or not isinstance(source, fx.Node):
        return []
    version = known.get(source)
    if version is None or version.region != Region(target):
        return []
    changed = {other.args[0] for other in ends}
    last = [
        write
        for at, write in enumerate(version.writes)
        if not any(write.region.lies_in(later.region) for later in version.writes[at + 1 :])
    ]
    if any(view_root(write.value) in changed for write in last):
        return []  # it might be read after it is written
    return last


@dataclass(slots=True)
class _Rewriting:
    """One pass over a graph whose copies at its end, `ends`, are to be of `parts`; `made` has views by base, step."""

    ends: Sequence[fx.Node]
    known: dict[fx.Node, Version]
    parts: dict[fx.Node, list[Write]]
    made: dict[tuple[fx.Node, Step], fx.Node] = field(default_factory=dict)

    def read(self, graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
        """The same view of what was written, or of the input; a copy of the node where that is not known to be one."""
        region, writes = self.known[node].region, self.known[node].writes
        base, steps = copies[region.root], region.steps
        for write in reversed(writes):
            if region.lies_in(write.region):
                base, steps = copies[write.value], steps[len(write.region.steps) :]
                break
            if not region.is_disjoint_from(write.region):
                return graph.node_copy(node, copies.__getitem__)
        found = self._view(graph, base, steps, copies)
        have, want = found.meta["val"], node.meta["val"]
        is_same = have.dtype == want.dtype and has_stride(have, want.stride())
        return found if is_same else graph.node_copy(node, copies.__getitem__)

    def _view(self, graph: fx.Graph, base: fx.Node, steps: Sequence[Step], copies: Copies) -> fx.Node:
        for step in steps:
            key = (base, step)
            if key not in self.made:
                args: Any = fx.map_arg(step.args, copies.__getitem__)
                self.made[key] = replacing.call(graph, {}, step.target, base, *args)
            base = self.made[key]
        return base

    def write(self, graph: fx.Graph, output: fx.Node, copies: Copies) -> fx.Node:
        """Put the copies before the output, no view behind one, and drop views that nobody reads any more."""
        pairs = []
        for end in self.ends:
            target, value = (copies[arg] for arg in end.args if isinstance(arg, fx.Node))
            writes = self.parts.get(end, ())
            views = [(self._view(graph, target, write.region.steps, copies), copies[write.value]) for write in writes]
            pairs += [(end, *pair) for pair in views or [(target, value)]]
        for end, target, value in pairs:
            node = graph.call_function(aten.copy_.default, (target, value))
            node.meta = {**end.meta, "val": target.meta["val"]}
        made = graph.node_copy(output, copies.__getitem__)
        run_though_unused = {copies[node] for node in copies if not node.users}
        for node in reversed(graph.nodes):
            if not node.users and node not in run_though_unused and _only_lays_out(node):
                graph.erase_node(node)
        return made


def _seen_in_results(graph: fx.Graph) -> set[fx.Node]:
    """The graph's results, and whatever they are views of."""
    seen: set[fx.Node] = set()
    for result in graph.output_node().all_input_nodes:
        node: fx.Node | None = result
        while node is not None:
            seen.add(node)
            node = view_source(node)
    return seen


def _only_lays_out(node: fx.Node) -> bool:
    """Whether this is a view, one of several that an operator gives, or a copy with a part replaced."""
    return view_source(node) is not None or is_view(node.target) or view_written(node.target) is not None

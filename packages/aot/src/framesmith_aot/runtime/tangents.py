"""A backward graph for the tangents that came: smaller where some are absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aten.graphs.cleanup import eliminate_dead
from framesmith_aten.graphs.nodes import dependents, factory_options

aten = torch.ops.aten


def without_tangents(graph: fx.Graph, absent: Sequence[fx.Node], wanted: Sequence[int]) -> fx.Graph:
    """The backward graph where the `absent` tangents did not come; its results are those at `wanted`.

    The pass is linear in its tangents, so a call all of whose tangent-dependent operands are absent is
    zero: it is left out, and zeros stand for it where something present needs it.
    """
    copy = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    dependent = dependents(graph, [node for node in graph.nodes if node.meta.get("tangent")])
    missing: set[fx.Node] = set(absent)
    for node in graph.nodes:
        if node in missing:
            continue
        if node.op == "output":
            results: Any = node.args[0]
            kept = [results[position] for position in wanted]
            env.update((result, _zeros(copy, result)) for result in kept if result in missing)
            copy.output(tuple(env[result] for result in kept))
            break
        sources = [source for source in node.all_input_nodes if source in dependent]
        if sources and all(source in missing for source in sources):
            missing.add(node)
        else:
            _copy(copy, node, env, missing)
    eliminate_dead(copy)
    return copy


def _copy(graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node], missing: set[fx.Node]) -> None:
    lost = [source for source in node.all_input_nodes if source in missing]
    if node.target is aten.add.Tensor and len(lost) == 1 and not node.kwargs:
        other = node.args[0] if node.args[1] is lost[0] else node.args[1]
        if isinstance(other, fx.Node) and _same_type(other, node):
            env[node] = env[other]
            return
    for source in lost:
        env[source] = _zeros(graph, source)
    env[node] = graph.node_copy(node, env.__getitem__)


def _same_type(first: fx.Node, second: fx.Node) -> bool:
    one, two = first.meta["val"], second.meta["val"]
    return bool(one.shape == two.shape and one.dtype == two.dtype and one.stride() == two.stride())


def _zeros(graph: fx.Graph, node: fx.Node) -> fx.Node:
    val = node.meta["val"]
    options = factory_options(val)
    if val.is_contiguous():
        zeros = graph.call_function(aten.full.default, (list(val.shape), 0), options)
    else:
        frame = graph.call_function(aten.empty_strided.default, (list(val.shape), list(val.stride())), options)
        frame.meta = dict(node.meta)
        zeros = graph.call_function(aten.fill.Scalar, (frame, 0))
    zeros.meta = dict(node.meta)
    return zeros

"""Backward graphs specialised for a pattern of absent tangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from framesmith_aten.graphs.nodes import dependents, factory_options
from framesmith_aten.graphs.numbers import numbers_in
from framesmith_aten.graphs.tidying.cleanup import eliminate_dead
from framesmith_aten.layouts import is_contiguous
from framesmith_aten.meta import TANGENT
from framesmith_aten.symbolic import all_equal, has_symbols
from framesmith_guards.torch_adapter import aten


def without_tangents(graph: fx.Graph, absent: Sequence[fx.Node], wanted: Sequence[int]) -> fx.Graph:
    """Return the backward graph without the `absent` tangents; its results are those at `wanted`.

    The pass is linear in its tangents: a call whose tangent-dependent operands are all absent is zero. It is left out;
    zeros replace it where something present needs it.
    """
    copy = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    dependent = dependents(graph, [node for node in graph.nodes if TANGENT.get(node)])
    missing: set[fx.Node] = set(absent)
    for node in graph.nodes:
        if node in missing:
            continue
        if node.op == "output":
            results: Any = node.args[0]
            present = [results[position] for position in wanted]
            env.update((result, _zeros(copy, result)) for result in present if result in missing)
            copy.output(tuple(env[result] for result in present))
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
    if one.dtype != two.dtype or one.dim() != two.dim():
        return False
    return all_equal(one.shape, two.shape) and all_equal(one.stride(), two.stride())


def _zeros(graph: fx.Graph, node: fx.Node) -> fx.Node:
    val = node.meta["val"]
    options = factory_options(val)
    size, stride = list(val.shape), list(val.stride())
    if has_symbols(val):
        size, stride = numbers_in(graph).in_place_of_symbols([size, stride])
    if is_contiguous(val):
        zeros = graph.call_function(aten.full.default, (size, 0), options)
    else:
        frame = graph.call_function(aten.empty_strided.default, (size, stride), options)
        frame.meta = dict(node.meta)
        zeros = graph.call_function(aten.fill.Scalar, (frame, 0))
    zeros.meta = dict(node.meta)
    return zeros

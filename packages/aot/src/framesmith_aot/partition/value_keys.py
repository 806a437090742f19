"""Keys of the values of a graph's nodes: equal for equal computations, also of two traces of one program."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import fx

from framesmith_aot.partition.masks import narrow_masks
from framesmith_aot.trace.joint import JointGraph
from framesmith_aten.graphs.nodes import is_pure
from framesmith_aten.meta import READ_AGAIN
from framesmith_aten.operators import is_random
from framesmith_aten.symbolic import all_equal

ValueKey = bytes
"""A digest of a node's operator and operands, and of the number of effects before it where it has one itself."""

#: Numbers of tensors that a graph holds: those of two traces are never equal.
_held = itertools.count()


def value_keys(graph: fx.Graph, inputs: Sequence[fx.Node]) -> dict[fx.Node, ValueKey]:
    """Return the keys of all nodes but the output. `inputs` are the placeholders that the keys number."""
    keys = {node: b"input %d" % at for at, node in enumerate(inputs)}
    effects = itertools.count()
    for node in graph.nodes:
        if node in keys or node.op == "output":
            continue
        if node.op != "call_function":
            keys[node] = b"held %d" % next(_held)
            continue
        operands = fx.node.map_arg((node.args, node.kwargs), keys.__getitem__)
        number = None if is_pure(node) else next(effects)
        keys[node] = hashlib.blake2b(repr((node.target, operands, number)).encode(), digest_size=16).digest()
    return keys


def result_keys(graph: fx.Graph, positions: Collection[int]) -> dict[int, ValueKey]:
    """Return the keys of the results of a forward graph at some positions."""
    if not positions:
        return {}
    keys = value_keys(graph, graph.find_nodes(op="placeholder"))
    results: tuple[fx.Node, ...] = graph.output_node().args[0]  # type: ignore[assignment]
    return {at: keys[results[at]] for at in positions}


def read_known_values(joint: JointGraph, given: Mapping[int, ValueKey | None]) -> None:
    """Read values that the inputs at some positions hold from there, where the graph computes the same.

    `given`: the key of each, or None for another value. These inputs are no memory of the user's, or such that eager
    mode saves. Random numbers that nothing reads any longer are not drawn.
    """
    narrow_masks(joint)
    joint.write_output()
    for at in given:
        READ_AGAIN.set(joint.inputs[at], True)
    known = {key: joint.inputs[at] for at, key in given.items() if key is not None}
    for node, key in value_keys(joint.graph, joint.inputs).items():
        source = known.get(key)
        if source is not None and _have_one_layout(node, source):
            node.replace_all_uses_with(source, lambda user: user.op != "output")
    _erase_unused(joint.graph)
    draws = [node for node in joint.graph.nodes if node.op == "call_function" and is_random(node.target)]
    if not any(node.users for node in draws):
        for node in draws:
            joint.graph.erase_node(node)
        _erase_unused(joint.graph)
    joint.read_output()


def _have_one_layout(one: fx.Node, other: fx.Node) -> bool:
    first, second = one.meta["val"], other.meta["val"]
    if not isinstance(first, torch.Tensor) or first.dtype != second.dtype or first.dim() != second.dim():
        return False
    return all_equal(first.shape, second.shape) and all_equal(first.stride(), second.stride())


def _erase_unused(graph: fx.Graph) -> None:
    """Erase unused calls, also such as may raise: they have not, in the run that gave the known values."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and is_pure(node):
            graph.erase_node(node)

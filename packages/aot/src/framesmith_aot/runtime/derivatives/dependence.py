"""Data dependence in a joint graph: the inputs whose elements (not sizes) its results and gradients depend on."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping

from torch import fx

from framesmith_aot.trace.joint import JointGraph
from framesmith_aten.graphs.nodes import may_fail
from framesmith_aten.graphs.numbers import LAYOUT_QUERIES
from framesmith_aten.operators import arguments, is_pointwise, is_random, updated_statistics
from framesmith_guards.torch_adapter import OpOverload

#: Results of a functional batch norm before its updated running statistics.
OWN_RESULTS = 3


def needed(joint: JointGraph) -> frozenset[int]:
    """Return the inputs that gradients, or results with gradients, depend on (before any mutation)."""
    slots = (slot for slot, meta in zip(joint.slots, joint.meta.slots, strict=True) if meta.differentiable)
    return _Reading(joint).inputs([*slots, *joint.grads])


def gradient_inputs(joint: JointGraph) -> list[frozenset[int]]:
    """Return, for each autograd node, the inputs that the gradients of its operands depend on."""
    reading = _Reading(joint)
    return [reading.inputs(grad for grad in node.grads if grad is not None) for node in joint.nodes]


def accepts_undef(joint: JointGraph) -> frozenset[int]:
    """Return the inputs whose contents can be undefined: no call fails by them, no number or size depends on them.

    They are read by elementwise operators only, and as statistics that a normalisation updates.
    """
    known: dict[fx.Node, bool] = {}
    for node in reversed(joint.graph.nodes):
        known[node] = all(_takes_anything(node, user, known) for user in node.users)
    return frozenset(at for at, node in enumerate(joint.inputs) if known[node])


def _takes_anything(value: fx.Node, user: fx.Node, known: Mapping[fx.Node, bool]) -> bool:
    """Whether `user`, and the users of its results, as `known`, work on any contents of `value`."""
    if user.op == "output":
        return True
    if value in _updated(user):
        return all(known[item] for item in user.users if _is_updated(item))
    elementwise = is_pointwise(user.target) and not is_random(user.target) and not may_fail(user)
    return (elementwise or _is_updated(user)) and known[user]


class _Reading:
    """The inputs that each node of a graph depends on, as the bits of an integer."""

    def __init__(self, joint: JointGraph) -> None:
        self._bits = {node: 1 << at for at, node in enumerate(joint.inputs)}
        late = {node: joint.final_value(at) for at, node in joint.late_inputs.items()}
        for node in joint.graph.nodes:
            if node not in self._bits:
                self._bits[node] = self._union([late[node]] if node in late else _read_by(node))

    def _union(self, nodes: Iterable[fx.Node]) -> int:
        return functools.reduce(operator.or_, (self._bits[node] for node in nodes), 0)

    def inputs(self, nodes: Iterable[fx.Node]) -> frozenset[int]:
        """Return the positions of the inputs that any of these nodes depends on."""
        bits = self._union(nodes)
        return frozenset(at for at in range(bits.bit_length()) if bits >> at & 1)


def _read_by(node: fx.Node) -> set[fx.Node]:
    """Return the operands that a call's results depend on.

    Layout queries depend on none. Batch norm in training computes its results without the running statistics, which it
    only updates.
    """
    if node.target in LAYOUT_QUERIES:
        return set()
    if _is_updated(node):
        return {node.args[0], *_updated(node.args[0])}  # type: ignore[arg-type]
    return {*node.all_input_nodes} - _updated(node)


def _is_updated(node: fx.Node) -> bool:
    return node.target is operator.getitem and bool(node.args[1] >= OWN_RESULTS)  # type: ignore[operator]


def _updated(node: fx.Node) -> set[fx.Node]:
    if not isinstance(node.target, OpOverload):
        return set()
    values = arguments(node.target, node.args, node.kwargs)
    return {values[name] for name in updated_statistics(node.target, node.args, node.kwargs)}

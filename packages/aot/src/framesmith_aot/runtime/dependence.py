"""Which inputs of a joint graph its results and its gradients depend on: on the numbers in them, not on their sizes.

And of which a call may be run again whatever is in them.
"""

from __future__ import annotations

import functools
import itertools
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
    """The inputs that some result with gradients depends on, or some gradient: also of what is overwritten later."""
    flowing = (slot for slot, flows in zip(joint.slots, joint.meta.slots, strict=True) if flows)
    return _Reading(joint).inputs([*flowing, *(grad for grad in joint.grads if grad is not None)])


def behind(joint: JointGraph) -> list[frozenset[int]]:
    """For each autograd node the inputs that the gradients of its operands depend on, and so all their derivatives."""
    reading, grads = _Reading(joint), iter(joint.grads)
    return [
        reading.inputs(grad for grad in itertools.islice(grads, len(node.operands)) if grad is not None)
        for node in joint.nodes
    ]


def accepts_undef(joint: JointGraph) -> frozenset[int]:
    """The inputs that may hold anything: no call fails for it, and no data-dependent number or size comes of it.

    They are read element by element alone, and as statistics that a normalisation updates.
    """
    known: dict[fx.Node, bool] = {}
    for node in reversed(joint.graph.nodes):
        known[node] = all(_takes_anything(node, user, known) for user in node.users)
    return frozenset(at for at, node in enumerate(joint.inputs) if known[node])


def _takes_anything(value: fx.Node, user: fx.Node, known: Mapping[fx.Node, bool]) -> bool:
    """Whether `user` works on whatever `value` holds, and so do those that it shows in, as `known`."""
    if user.op == "output":
        return True
    if value in _updated(user):
        return all(known[item] for item in user.users if _is_updated(item))
    elementwise = is_pointwise(user.target) and not is_random(user.target) and not may_fail(user)
    return (elementwise or _is_updated(user)) and known[user]


class _Reading:
    """Which inputs each node of a graph depends on, as the bits of an integer."""

    def __init__(self, joint: JointGraph) -> None:
        self._bits = {node: 1 << at for at, node in enumerate(joint.inputs)}
        left = {node: joint.final_value(at) for at, node in joint.left.items()}
        for node in joint.graph.nodes:
            if node not in self._bits:
                self._bits[node] = self._union([left[node]] if node in left else _read_by(node))

    def _union(self, nodes: Iterable[fx.Node]) -> int:
        return functools.reduce(operator.or_, (self._bits[node] for node in nodes), 0)

    def inputs(self, nodes: Iterable[fx.Node]) -> frozenset[int]:
        """The positions of the inputs that some of these nodes depend on."""
        bits = self._union(nodes)
        return frozenset(at for at in range(bits.bit_length()) if bits >> at & 1)


def _read_by(node: fx.Node) -> set[fx.Node]:
    """The operands that a call's results depend on.

    What a layout says is not changed in place. Normalisation in training computes its own results without the running
    statistics, which it only updates.
    """
    if node.target in LAYOUT_QUERIES:
        return set()
    if _is_updated(node):
        return {node.args[0], *_updated(node.args[0])}  # type: ignore[arg-type]
    return {*node.all_input_nodes} - _updated(node)


def _is_updated(node: fx.Node) -> bool:
    """Whether the node gives updated statistics."""
    return node.target is operator.getitem and bool(node.args[1] >= OWN_RESULTS)  # type: ignore[operator]


def _updated(node: fx.Node) -> set[fx.Node]:
    if not isinstance(node.target, OpOverload):
        return set()
    values = arguments(node.target, node.args, node.kwargs)
    return {values[name] for name in updated_statistics(node.target, node.args, node.kwargs)}

"""`export_joint`: the forward and backward pass of a function as one graph module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import fx

from framesmith_aot.capture.recorded import record
from framesmith_aot.compile import joint_graph
from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.joint import JointGraph
from framesmith_aot.trace.metadata import Slot
from framesmith_aot.trace.output_groups import NodeResult, Source
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.tracing.decompositions import Lowers, lowers_nothing
from framesmith_guards.torch_adapter import aten


def export_joint(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    lowers: Lowers = lowers_nothing,
    dynamic: bool = False,
) -> fx.GraphModule:
    """Return the ATen graph of `fn` and of its backward pass: `(*inputs, *tangents) -> (*results, *gradients)`.

    Inputs are the tensors among the arguments, the same one once, then those that `fn` finds by itself; results are the
    tensors of `fn`'s result, of which those with gradients have tangents, in order; a gradient is None for an input
    without one. Without gradients there are no tangents and no gradients. `fn` runs once, on fake tensors.

    Raises AotUnsupported where `aot_function` does, and for a function that changes inputs or returns views of them: a
    graph alone does not have that effect.
    """
    leaves, tree = unstable.tree_flatten((tuple(args), dict(kwargs or {})))
    found = record(fn, leaves, tree, modules={}, dynamic=dynamic)
    joint = joint_graph(found.module, [one.example for one in found.given], lowers)
    _refuse_effects(joint)
    graph = fx.Graph()
    copies = _Copies(joint, graph)
    results = [joint.slots[one.role.index] for one in joint.meta.outputs if isinstance(one.role, Slot)]
    for node in (*joint.inputs, *_tangents_of_results(joint)):  # in this order
        copies.add([node])
    copies.add(results)
    gradients = copies.gradients()
    graph.output((*(copies.made[node] for node in results), *gradients))
    return new_module(dict(joint.attributes), graph)


def _refuse_effects(joint: JointGraph) -> None:
    if joint.meta.mutated or joint.meta.grad_mode_after is not None:
        raise AotUnsupported("joint-mutation", "a function that changes inputs or grad mode", "a graph alone does not")
    if not all(isinstance(one.role, Slot) for one in joint.meta.outputs):
        why = "a graph alone returns new tensors"
        raise AotUnsupported("joint-alias", "a function that returns an input, a view or one tensor twice", why)


def _tangents_of_results(joint: JointGraph) -> list[fx.Node]:
    """Return the tangents of the function's results, in order."""
    found = {
        result: tangent
        for node in joint.nodes
        for tangent, result in zip(node.tangents, node.shape.results, strict=True)
        if isinstance(result, int)
    }
    return [found[result] for result in sorted(found)]


class _Copies:
    """The nodes of a joint graph copied to one whose backward pass is whole: groups feed the groups before them."""

    def __init__(self, joint: JointGraph, graph: fx.Graph) -> None:
        self._joint = joint
        self._graph = graph
        self._order = {node: at for at, node in enumerate(joint.graph.nodes)}
        self.made: dict[fx.Node, fx.Node] = {}

    def add(self, wanted: Iterable[fx.Node]) -> None:
        """Copy these nodes and all that they read."""
        found: set[fx.Node] = set()
        left = [*wanted]
        while left:
            node = left.pop()
            if node not in self.made and node not in found:
                found.add(node)
                left += node.all_input_nodes
        for node in sorted(found, key=self._order.__getitem__):
            self.made[node] = self._graph.node_copy(node, self.made.__getitem__)

    def gradients(self) -> list[fx.Node | None]:
        """Copy the backward pass; return the gradient of each input."""
        joint = self._joint
        of_results: dict[Source, fx.Node] = {}
        of_inputs: dict[int, fx.Node] = {}
        for number, node in reversed([*enumerate(joint.nodes)]):
            for at, (tangent, result) in enumerate(zip(node.tangents, node.shape.results, strict=True)):
                passed = of_results.get(NodeResult(number, at))
                if isinstance(result, int):
                    passed = self._sum(passed, self.made[tangent])
                if passed is None:
                    why = "the gradient between two groups of operations is always absent"
                    raise AotUnsupported("joint-absent", "a function of several results", why)
                self.made[tangent] = passed
            self.add(grad for grad in node.grads if grad is not None)
            for grad, source in zip(node.grads, node.shape.sources, strict=True):
                if grad is None:
                    continue
                if isinstance(source, NodeResult):
                    of_results[source] = self._sum(of_results.get(source), self.made[grad])
                elif source.kind == "input":
                    of_inputs[source.position] = self._sum(of_inputs.get(source.position), self.made[grad])
        return [of_inputs.get(at) for at in range(len(joint.inputs))]

    def _sum(self, one: fx.Node | None, other: fx.Node) -> fx.Node:
        if one is None:
            return other
        total = self._graph.call_function(aten.add.Tensor, (one, other))
        total.meta = dict(other.meta)
        return total

"""Shared bodies (see Note [Shared bodies]): a body traced and partitioned as a graph of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.partition.split import NodePart, Saved, forward_graph, partition, returned_numbers
from framesmith_aot.trace.control_flow.bodies import AtenBody
from framesmith_aot.trace.control_flow.shared import BackwardBody, SharedBody
from framesmith_aot.trace.joint import Binding, JointGraph, trace_joint
from framesmith_aot.trace.metadata import Slot
from framesmith_aot.trace.output_groups import End
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.tracing.tracer import GraphTracer


def trace_shared(
    body: fx.GraphModule, operands: Sequence[Any], tracer: GraphTracer, *, memory_budget: float = 1.0
) -> SharedBody | None:
    """Trace a body on fakes of its operands; None where one node of each pass does not describe it."""
    held = {node.target: getattr(body, node.target) for node in body.graph.find_nodes(op="get_attr")}
    binding = Binding([*range(len(operands))], {}, held)
    training = torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in operands)
    try:
        joint = trace_joint(
            body,
            operands,
            binding,
            tracer.fake_mode,
            tracer.lowers,
            training=training,
            keep_input_mutations=False,
            trace_shared=partial(trace_shared, memory_budget=memory_budget),
        )
    except AotUnsupported:
        return None  # the same operations in place raise the error, or do not
    if not _gives_new_tensors(joint):
        return None
    attributes = dict(joint.attributes)
    if not joint.training:
        return SharedBody(_body(attributes, forward_graph(joint)), len(joint.slots), None)
    if len(joint.nodes) > 1:
        return None
    parts = partition(joint, memory_budget)
    [part] = parts.parts
    backward = _backward(attributes, part, len(operands))
    if backward is None:
        return None
    return SharedBody(_body(attributes, parts.forward), len(joint.slots), backward)


def _gives_new_tensors(joint: JointGraph) -> bool:
    """Whether each result is a tensor of its own, and nothing else is changed or left behind."""
    meta = joint.meta
    outputs = [one.role for one in meta.outputs]
    alone = outputs == [Slot(at) for at in range(len(joint.slots))]
    changes = meta.mutated or meta.grad_mode_after is not None or joint.late_inputs
    return alone and not changes and not returned_numbers(joint)


def _body(attributes: dict[str, Any], graph: fx.Graph) -> AtenBody:
    results: Any = graph.output_node().args[0]
    return AtenBody(new_module(attributes, graph), [node.meta["val"] for node in results], [])


def _backward(attributes: dict[str, Any], part: NodePart, operands: int) -> BackwardBody | None:
    """Return the backward pass of the only autograd node; None where it is not as that of a Function that saves."""
    shape = part.shape
    results = [one for one in shape.results if isinstance(one, int)]
    ends = [one.source for one in shape.operands if isinstance(one.source, End) and one.source.kind == "input"]
    plain = len(results) == len(shape.results) and len(ends) == len(shape.operands)
    if not plain or shape.asks_absent or any(one.refusal is not None for one in shape.operands):
        return None
    at = {end.position: position for end, position in zip(ends, part.grad_positions, strict=True)}
    given = part.graph.find_nodes(op="placeholder")[-len(results) :]
    return BackwardBody(
        _body(attributes, part.graph),
        [_position(one, operands) for one in part.saved],
        [_position(one, operands) for one in part.numbers],
        results,
        [node.meta["val"] for node in given],
        [at.get(position) for position in range(operands)],
    )


def _position(saved: Saved, operands: int) -> int:
    """Return the position of a saved value among the operands and what the forward body returns."""
    return saved.index if saved.from_input else operands + saved.index

"""Conditions of CUDA graph capture: work on the host, or for one call alone, would be missing from a replay."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from framesmith_aten import operators as ops
from framesmith_aten.graphs.nodes import value_of, view_root
from framesmith_aten.graphs.numbers import FUNCTIONS, numbers_of
from framesmith_aten.nested import tensors_in
from framesmith_aten.symbolic import has_symbols, is_assumed, is_symbolic, is_unbacked
from framesmith_guards.torch_adapter import OpOverload

#: Tags of operators that cannot be captured, and the reasons.
ON_THE_HOST = {
    torch.Tag.data_dependent_output: "reads a number from the device",
    torch.Tag.cudagraph_unsafe: "is not safe to capture",
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """A graph's inputs by position; `varying` tensors have symbols in sizes, strides or offset; `written` change."""

    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    varying: tuple[int, ...]
    written: frozenset[int]


def why_not_captured(gm: fx.GraphModule, device: torch.device) -> str | None:
    """Why the graph's launches on the device cannot be captured and replayed, or None."""
    return next((why for node in gm.graph.nodes if (why := _why_not_node(node, device)) is not None), None)


def takes_unbacked(gm: fx.GraphModule) -> bool:
    """Whether an input is a number, or has a size, that is another at each call: backward graphs have such inputs."""
    return any(why_unbacked(node) is not None for node in gm.graph.find_nodes(op="placeholder"))


def why_not_by_itself(node: fx.Node, device: torch.device) -> str | None:
    """Why the call cannot be captured, whatever the rest of its graph is, or None."""
    values = (_why_not_value(operand, device) or why_unbacked(operand) for operand in node.all_input_nodes)
    return next(filter(None, values), None) or _why_not_node(node, device) or why_unbacked(node)


def _why_not_node(node: fx.Node, device: torch.device) -> str | None:
    return _why_not_value(node, device) or (why_not_call(node) if node.op == "call_function" else None)


def _why_not_value(node: fx.Node, device: torch.device) -> str | None:
    for tensor in tensors_in(node.meta.get("val")):
        known = {device.index, tensor.device.index} - {None}  # a device without a number is the current one
        if tensor.device.type != device.type or len(known) > 1:
            return f"{node.name} is on {tensor.device}, and all that is captured lies on {device}"
    return None


def why_unbacked(node: fx.Node) -> str | None:
    """The reason why a value is unbacked or of unbacked size, or None."""
    value = node.meta.get("val")
    varying = [one for one in tensors_in(value) if one.layout is torch.strided and has_symbols(one)]
    numbers = [value, *(number for one in varying for number in numbers_of(one).values())]
    unbacked = any(is_symbolic(number) and (is_unbacked(number) or is_assumed(number)) for number in numbers)
    return f"{node.name} or its size is unbacked" if unbacked else None


def why_not_call(node: fx.Node) -> str | None:
    """Why such a call cannot be captured wherever its tensors are, or None."""
    op = node.target
    if not isinstance(op, OpOverload):
        if op is operator.getitem or op in FUNCTIONS:
            return None
        return f"{ops.op_name(op)} is no operator: what it does besides is not known"
    for tag, what in ON_THE_HOST.items():
        if tag in op.tags:
            return f"{op} {what}"
    if ops.is_custom(op):
        return f"{op} is not torch's own: what it does besides, on the host, would be left out"
    if ops.is_view_by_strides(op):
        return f"{op} sees memory around its operand"
    on_device = ops.is_random(op) or ops.is_mutable(op) or ops.row(op).statistics or ops.is_check_by_device(op)
    if ops.is_effect(op) and not on_device:
        return f"{op} has an effect on the host"
    if ops.arguments(op, node.args, node.kwargs).get("generator") is not None:
        return f"{op} draws from a generator of its own"
    if ops.reads_sizes(op, value_of(node.args), value_of(node.kwargs)):
        return f"{op} reads from the device how many elements there are"
    return None


def launches_anything(gm: fx.GraphModule) -> bool:
    """Whether something in the graph may compute: not only views and numbers."""
    return any(
        node.op == "call_function" and isinstance(node.target, OpOverload) and not ops.is_view(node.target)
        for node in gm.graph.nodes
    )


def parameters(gm: fx.GraphModule) -> Parameters:
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    tensors = {at: v for at, node in enumerate(nodes) if isinstance(v := node.meta.get("val"), torch.Tensor)}
    written = {target for node in gm.graph.nodes for target in written_by(node)}
    return Parameters(
        tensors=tuple(tensors),
        numbers=tuple(at for at in range(len(nodes)) if at not in tensors),
        varying=tuple(at for at, value in tensors.items() if has_symbols(value)),
        written=frozenset(at for at, node in enumerate(nodes) if node in written),
    )


def written_by(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that the node writes to, seen through views."""
    op = node.target
    if node.op != "call_function" or not isinstance(op, OpOverload):
        return
    names = ops.written_names(op, node.args, node.kwargs)
    given = ops.arguments(op, node.args, node.kwargs) if names else {}
    found: list[fx.Node] = []
    fx.node.map_arg([given.get(name) for name in names], found.append)
    yield from map(base_of, found)


def base_of(node: fx.Node) -> fx.Node:
    """The base of a view, or the call of one of several results."""
    root = view_root(node)
    source = root.args[0] if root.target is operator.getitem else None
    return base_of(source) if isinstance(source, fx.Node) else root

"""Single numbers on the CPU that calls on a device take, copied to the device first, for captured launches.

A captured kernel cannot be given such a number, and each call that takes one would be a launch by itself between two
captures. All numbers of one type that need nothing of the device get there by one copy, which waits for nothing: it is
out of fresh memory, which is not pinned, and therefore read before the copy returns. Only for simple arithmetic that
our kernels compute, and that is the same with both: not where the device would round the number to a low-precision type
first, nor powers, of which eager mode has special cases for some numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.nodes import may_fail
from framesmith_aten.operators import is_effect, is_factory, is_pointwise, row
from framesmith_aten.symbolic import has_symbols
from framesmith_backends.ir.dtypes import is_low_precision
from framesmith_backends.lower.graph import has_rule
from framesmith_backends.rewrite.replacing import call
from framesmith_guards.torch_adapter import OpOverload, aten


def with_scalars_moved(gm: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """The graph with such numbers on the device; the same graph if it has none."""
    uses = {node: found for node in gm.graph.nodes if (found := _moved_for(node))}
    scalars = dict.fromkeys(scalar for found in uses.values() for scalar in found)
    if not scalars:
        return gm
    rewriting = _Rewriting(gm, device)
    early = [scalar for scalar in scalars if not _is_constant(scalar) and scalar in rewriting.needing_nothing]
    rewriting.move_early(early)
    for node in gm.graph.nodes:
        rewriting.copy(node, uses.get(node, ()))
        if node in scalars and node not in early:
            rewriting.move(node)
    for scalar in reversed(scalars):
        if _is_constant(scalar) and not rewriting.copies[scalar].users:
            rewriting.graph.erase_node(rewriting.copies[scalar])
    return new_module(gm, rewriting.graph)


def _moved_for(node: fx.Node) -> list[fx.Node]:
    """The numbers that the call would as well take from the device."""
    value = node.meta.get("val")
    op: Any = node.target
    is_arithmetic = is_pointwise(op) and has_rule(op) and not row(op).costly and not is_effect(op)
    if not is_arithmetic or not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return []
    operands = [(operand, operand.meta.get("val")) for operand in node.all_input_nodes]
    tensors = [(operand, of) for operand, of in operands if isinstance(of, torch.Tensor)]
    found = [(operand, of) for operand, of in tensors if of.device.type == "cpu"]
    if len(found) == len(tensors) or any(
        of.dim() or of.is_complex() or of.layout is not torch.strided for _, of in found
    ):
        return []
    if any(is_low_precision(of.dtype) and of.dtype != scalar.dtype for _, of in tensors for _, scalar in found):
        return []
    return [operand for operand, _ in found]


def _is_constant(scalar: fx.Node) -> bool:
    return scalar.op == "call_function" and is_factory(scalar.target) and not scalar.all_input_nodes


def _needing_nothing(gm: fx.GraphModule) -> set[fx.Node]:
    """The nodes computed from inputs by the CPU alone, which could run first."""
    found: set[fx.Node] = set()
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        plain = isinstance(value, torch.Tensor) and value.device.type == "cpu" and not has_symbols(value)
        if not plain or not found.issuperset(node.all_input_nodes):
            continue
        if node.op != "call_function" or not (is_effect(node.target) or may_fail(node)):
            found.add(node)
    return found


class _Rewriting:
    """The graph while it is copied. `moved` are numbers on the device."""

    def __init__(self, gm: fx.GraphModule, device: torch.device) -> None:
        self.gm, self.device = gm, device
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.moved: dict[fx.Node, fx.Node] = {}
        self.needing_nothing = _needing_nothing(gm)

    def move_early(self, scalars: Sequence[fx.Node]) -> None:
        """Inputs, what these numbers are made of, and the numbers on the device."""
        needed, stack = set(scalars), list(scalars)
        while stack:
            more = [operand for operand in stack.pop().all_input_nodes if operand not in needed]
            needed.update(more)
            stack += more
        nodes = self.gm.graph.nodes
        for node in (*(node for node in nodes if node.op == "placeholder"), *filter(needed.__contains__, nodes)):
            self.copy(node, ())
        for dtype in dict.fromkeys(scalar.meta["val"].dtype for scalar in scalars):
            self._move_together([scalar for scalar in scalars if scalar.meta["val"].dtype == dtype])

    def move(self, scalar: fx.Node) -> None:
        if _is_constant(scalar):
            op: Any = scalar.target
            self.moved[scalar] = self._call(scalar, op, *scalar.args, **{**scalar.kwargs, "device": self.device})
        else:
            self._move_together([scalar])

    def copy(self, node: fx.Node, scalars: Sequence[fx.Node]) -> None:
        if node not in self.copies:
            known = self.copies | {scalar: self.moved[scalar] for scalar in scalars}
            self.copies[node] = self.graph.node_copy(node, known.__getitem__)

    def _move_together(self, scalars: Sequence[fx.Node]) -> None:
        """By one copy, out of memory that nobody else has: what is pinned is read some time after a call."""
        together = self._call(scalars[0], aten.stack.default, [self.copies[scalar] for scalar in scalars])
        there = self._call(together, aten._to_copy.default, together, device=self.device, non_blocking=True)
        for at, scalar in enumerate(scalars):
            self.moved[scalar] = self._call(there, aten.select.int, there, 0, at)

    def _call(self, like: fx.Node, op: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        with like.meta["val"].fake_mode:
            return call(self.graph, {}, op, *args, **kwargs)

"""Biases of float32 matmuls on CUDA, added by the kernel that goes on with the result.

cuBLAS adds the bias as it stores the matmul, but has other kernels for matmuls that do: for 256 rows and weights of
256x1024 one that takes 22 us, where the matmul by itself takes 15 (H200). A kernel that reads the result adds it for
nothing, or for writing the sum once where the graph returns that too. A low-precision sum would be rounded twice.
"""

from __future__ import annotations

import torch
from torch import fx

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.operators import is_view
from framesmith_backends.lower.graph import has_rule
from framesmith_backends.rewrite.replacing import Copies, replaced
from framesmith_guards.torch_adapter import OpOverload, aten


def without_bias(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such sums by themselves; the same graph if it has none."""
    nodes = gm.graph.find_nodes(op="call_function", target=aten.addmm.default)
    found = {node for node in nodes if why_not(node) is None}
    if not found:
        return gm
    return new_module(gm, replaced(gm.graph, dict.fromkeys(found, _write)))


def _write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
    bias, first, second = map(copies.__getitem__, node.args)  # type: ignore[arg-type]
    matmul = graph.call_function(aten.mm.default, (first, second))
    total = graph.create_node("call_function", aten.add.Tensor, (matmul, bias), name=node.name)
    matmul.meta, total.meta = dict(node.meta), dict(node.meta)
    return total


def why_not(node: fx.Node) -> str | None:
    """Why the bias of a matmul stays where it is, or None."""
    value, operands = node.meta["val"], node.args
    if len(operands) != 3 or node.kwargs or not all(isinstance(one, fx.Node) for one in operands):
        return "scaled, or no tensors"
    bias = operands[0].meta["val"]  # type: ignore[union-attr]
    if value.dtype != torch.float32:
        return f"{value.dtype}"
    if bias.dim() != 1 or bias.dtype != torch.float32:
        return "no bias of one row"
    return None if _goes_on(node) else "no kernel reads the result"


def _goes_on(node: fx.Node) -> bool:
    """Whether a kernel reads the value, or a view of it, and calls of ATen's do not."""
    users = [user for user in node.users if user.op != "output"]
    views = [user for user in users if is_view(user.target)]
    rest = [user for user in users if user not in views]
    # That the rule for an operator declines a call is rare, and then costs a kernel.
    are_by_kernels = all(isinstance(user.target, OpOverload) and has_rule(user.target) for user in rest)
    return bool(users) and are_by_kernels and all(map(_goes_on, views))

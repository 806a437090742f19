"""Logarithms of probabilities in training steps, decomposed: a number of each row is saved for the backward pass.

Autograd keeps the result of `_log_softmax`, for a language model as many numbers as tokens times words, written for
that alone: a loss reads one of each row. Made of the scores, a row's largest and the logarithm of its sum, they are
computed again where they are read, and what is kept may be the scores, which are there in any case.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from framesmith_backends.ir.dtypes import DTYPES, FROM_TORCH, compute_type
from framesmith_backends.rewrite import replacing
from framesmith_backends.rewrite.replacing import Copies, replaced
from framesmith_guards.torch_adapter import aten


def decompose_log_softmax(graph: fx.Graph) -> fx.Graph | None:
    """A graph without those of which a gradient is computed and which nobody else is given; None if it has none."""
    found = [node for node in graph.nodes if node.target is aten._log_softmax.default and _is_worth_it(node)]
    return replaced(graph, dict.fromkeys(found, _written)) if found else None


def _is_worth_it(node: fx.Node) -> bool:
    value, dim = node.meta["val"], node.args[1]
    users = [user.target for user in node.users]
    size = value.shape[dim] if value.dim() else 0
    is_result = any(user.op == "output" for user in node.users)
    return not is_result and aten._log_softmax_backward_data.default in users and isinstance(size, int) and size > 0


def _written(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
    """`(x - max) - log(sum(exp(x - max)))` in float32 or float64, rounded at the end, as ATen's kernels have it."""
    given, dims, kind = node.args[0], [node.args[1]], node.meta["val"].dtype
    assert isinstance(given, fx.Node)
    call = partial(replacing.call, graph, node.meta)

    def converted(one: fx.Node, dtype: torch.dtype) -> fx.Node:
        return one if one.meta["val"].dtype == dtype else call(aten._to_copy.default, one, dtype=dtype)

    wide = converted(copies[given], DTYPES[compute_type(FROM_TORCH[kind])].torch)
    below = call(aten.sub.Tensor, wide, call(aten.amax.default, wide, dims, True))
    total = call(aten.sum.dim_IntList, call(aten.exp.default, below), dims, True)
    return converted(call(aten.sub.Tensor, below, call(aten.log.default, total)), kind)

"""Torch's operator database as graphs of one call."""

from __future__ import annotations

import torch
from torch import fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

OPS = {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


def samples(op, requires_grad, limit):
    """Return up to `limit` (graph, tensors) pairs of the operator on float32 (or its first dtype)."""
    dtypes = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in dtypes else sorted(dtypes, key=str)[0]
    wants = requires_grad and op.supports_autograd and dtype.is_floating_point
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=wants)):
        if number >= limit:
            return
        made = one_call(op, sample)
        if made is not None:
            yield made


def one_call(op, sample):
    flat, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
    graph = fx.Graph()
    tensors, operands = [], []
    for item in flat:
        if isinstance(item, torch.Tensor):
            if item.layout is not torch.strided:
                return None
            operands.append(graph.placeholder(f"x{len(tensors)}"))
            tensors.append(item)
        else:
            operands.append(item)

    def call(*values):
        it = iter(values)
        a, k = tree_unflatten([next(it) if isinstance(o, fx.Node) else o for o in operands], spec)
        out = op.op(*a, **k)
        return tree_flatten(out)[0]

    count = count_outputs(call, tensors)
    if count is None:
        return None
    out = graph.call_function(call, tuple(o for o in operands if isinstance(o, fx.Node)))
    graph.output(tuple(graph.call_function(_item, (out, i)) for i in range(count)))
    return fx.GraphModule({}, graph), tensors


def _item(values, index):
    return values[index]


def count_outputs(call, tensors):
    try:
        return len(call(*[t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]))
    except Exception:
        return None

"""Writes calls of the native attention into graphs of float32 tensors of the CPU.

Other types, dropout, large heads and small tensors stay with ATen. With dynamic shapes, each call decides.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from framesmith_aten.operators import arguments
from framesmith_aten.symbolic import has_symbols
from framesmith_backends.ir.ops import CPU_ATTENTION
from framesmith_backends.native_ops.attention.shape import MOST_DEPTH
from framesmith_backends.native_ops.base import CODE, call_like, is_on_cpu, rewritten
from framesmith_backends.reporting import Refusal, note
from framesmith_backends.rewrite.replacing import Copies

Args = tuple[Argument, ...]


def use_native_attention(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such calls; the same graph if it has none."""
    found = {}
    for node in gm.graph.find_nodes(op="call_function", target=CPU_ATTENTION):
        native = _native(node)
        if isinstance(native, Refusal):
            note("native attention", node.name, native)
        else:
            found[node] = native

    def write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
        from framesmith_backends.native_ops.attention.operator import ATTENTION

        args, code = found[node]
        call = call_like(graph, node, ATTENTION, *fx.node.map_arg(args, copies.__getitem__))
        CODE.set(call, code)
        return call

    return rewritten(gm, dict.fromkeys(found, write))


def _native(node: fx.Node) -> tuple[Args, Future[Any] | None] | Refusal:
    """The arguments of the native operator in place of this call of ATen's, and its code; or why it stays."""
    from framesmith_backends.native_ops.attention import operator

    given = arguments(node.target, node.args, node.kwargs)  # type: ignore[arg-type]
    operands = [given[name] for name in ("query", "key", "value", "attn_mask")]
    if given["dropout_p"] != 0:
        return Refusal("dropout")
    query, key, value = (one.meta["val"] for one in operands[:3])
    mask = None if operands[3] is None else operands[3].meta["val"]
    tensors = [query, key, value] if mask is None else [query, key, value, mask]
    if not all(is_on_cpu(one) and one.dtype == torch.float32 for one in tensors):
        return Refusal("tensors that are not dense, float32 and on the CPU")
    code = None
    if any(map(has_symbols, tensors)):
        why = "large heads" if isinstance(query.shape[-1], int) and query.shape[-1] > MOST_DEPTH else None
    else:
        q, k, v = map(operator.layout, (query, key, value))
        masked = None if mask is None else operator.layout(mask)
        why = operator.why_aten(q, k, v, masked)
        call = operator.call_of(q, k, v, masked, given["is_causal"]) if why is None else None
        code = None if call is None else operator.CODE[call.widths].engine
    return Refusal(why) if why else ((*operands[:3], given["is_causal"], operands[3], given["scale"]), code)

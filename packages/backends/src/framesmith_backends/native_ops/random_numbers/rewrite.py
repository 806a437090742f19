"""Writes draws of the native generator into graphs of the CPU, where it draws the same numbers as ATen.

Dropout's zeros and ones become bools, a byte each, read by what compares them with 0. `torch.rand` and `rand_like` of
float32 keep their numbers. Other distributions, other generators than the default one and results that are not
contiguous stay with ATen. Masks that a checkpoint draws again come from the state that is saved for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith_aten.operators import arguments
from framesmith_aten.symbolic import has_symbols
from framesmith_aten.tracing.redrawn import redrawn_mask
from framesmith_backends.native_ops.base import call_like, is_on_cpu, rewritten
from framesmith_backends.rewrite.replacing import Copies, Write
from framesmith_guards.torch_adapter import aten


def with_drawn_numbers(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such draws; the same graph if it has none, or if ATen draws other numbers."""
    found = [node for target in _WRITERS for node in gm.graph.find_nodes(op="call_function", target=target)]
    if not found:
        return gm
    from framesmith_backends.native_ops.random_numbers.operator import FEWEST, matches_aten

    found = [node for node in found if _is_drawn(node, FEWEST)]
    if not found or not matches_aten():
        return gm
    return rewritten(
        gm, {node: _WRITERS[node.target] for node in found}, lambda node: node.target is aten.empty_like.default
    )


def _is_drawn(node: fx.Node, fewest: int) -> bool:
    """Whether the native generator draws the node's numbers, and faster: at least `fewest` of them."""
    value = node.meta.get("val")
    if not is_on_cpu(value):
        return False
    given = arguments(node.target, node.args, node.kwargs)  # type: ignore[arg-type]
    if given.get("generator") is not None or given.get("pin_memory") or not value.is_contiguous():
        return False
    if not has_symbols(value) and value.numel() < fewest:
        return False
    if node.target is redrawn_mask():
        return True
    if node.target is aten.bernoulli.p:
        return value.is_floating_point()
    return value.dtype == torch.float32 and not has_symbols(value)


def _mask(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
    """Bools, and numbers made of them for readers other than comparisons with 0."""
    from framesmith_backends.native_ops.random_numbers.operator import DRAWN_MASK

    given = arguments(aten.bernoulli.p, node.args, node.kwargs)
    like = copies[_shape_of(node.args[0])]  # type: ignore[arg-type]
    p = copies[given["p"]] if isinstance(given["p"], fx.Node) else given["p"]
    mask = call_like(graph, node, DRAWN_MASK, like, p)
    mask.meta["val"] = node.meta["val"].ne(0)
    comparisons = [reader for reader in node.users if reader.target is aten.ne.Scalar and reader.args[1] == 0]
    copies.update(dict.fromkeys(comparisons, mask))
    if len(comparisons) == len(node.users):
        return mask
    numbers = graph.call_function(aten._to_copy.default, (mask,), {"dtype": node.meta["val"].dtype})
    numbers.meta = dict(node.meta)
    return numbers


def _redrawn(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
    from framesmith_backends.native_ops.random_numbers.operator import REDRAWN_MASK

    return call_like(graph, node, REDRAWN_MASK, *fx.map_arg(node.args, copies.__getitem__))


def _shape_of(node: fx.Node) -> fx.Node:
    """A tensor of the same shape: that of which an empty one is made for the draw."""
    if node.target is not aten.empty_like.default:
        return node
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _uniform(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
    from framesmith_backends.native_ops.random_numbers.operator import DRAWN_UNIFORM

    return call_like(graph, node, DRAWN_UNIFORM, list(node.meta["val"].shape))


_WRITERS: dict[Any, Write] = {
    redrawn_mask(): _redrawn, aten.bernoulli.p: _mask, aten.rand.default: _uniform, aten.rand_like.default: _uniform,
}  # fmt: skip

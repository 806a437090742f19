"""Writes calls of the native scans into graphs: `cumsum`, `cumprod`, `cummax`, `cummin`, `logcumsumexp` on the CPU.

Sums and products down columns are kernels of the graph (`lower/compute/reductions.py`). Complex numbers, results of few
bits and small tensors stay with ATen. A flip, a scan and a flip back, as in the derivative of a cumulative sum, become
a scan from the end.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from framesmith_aten.operators import arguments
from framesmith_aten.symbolic import has_symbols, hint_or_guess
from framesmith_backends.ir.dtypes import NUMBERS
from framesmith_backends.lower.compute.reductions import FEWEST_COLUMNS
from framesmith_backends.native_ops.base import call_like, is_on_cpu, rewritten
from framesmith_backends.rewrite.replacing import Copies, Write, dropped
from framesmith_guards.torch_adapter import aten


def with_scans(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such calls; the same graph if it has none."""
    from framesmith_backends.native_ops.scans.operator import ATENS

    kinds = {target: kind for kind, target in ATENS.items()}
    found = {node: kind for node in gm.graph.nodes if (kind := kinds.get(node.target)) and _is_native(node, kind)}
    reversed_ = {node: flips for node in found if (flips := _flips(node)) is not None}
    flipped = {last: node for node, (_, last) in reversed_.items()}

    def write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
        scan = flipped.get(node)
        if scan is None:
            return _written(graph, node, found[node], copies)
        call = _written(graph, scan, found[scan], copies, reversed_[scan][0])
        call.meta = dict(node.meta)
        return call

    writers = dict[fx.Node, Write].fromkeys((*found, *flipped), write)
    return rewritten(gm, writers | dict.fromkeys(reversed_, dropped), lambda node: node.target is aten.flip.default)


def _is_native(node: fx.Node, kind: str) -> bool:
    """Whether the native scan computes the node's results, and faster than ATen."""
    from framesmith_backends.native_ops.scans.operator import is_faster, supports

    found = node.meta.get("val")
    value = found[0] if isinstance(found, (list, tuple)) else found
    if not is_on_cpu(value):
        return False
    if not supports(kind, value.dtype) or _is_column_scan(node, kind, value):
        return False
    return has_symbols(value) or (value.is_contiguous() and is_faster(value, _dim(node, value), kind))


def _is_column_scan(node: fx.Node, kind: str, value: torch.Tensor) -> bool:
    """Whether a kernel scans a vector of lines at once, by the sizes met while tracing."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    given = source.meta["val"]
    if kind not in ("sum", "prod") or given.dtype not in NUMBERS or not given.is_contiguous():
        return False
    inner = value.shape[_dim(node, value) + 1 :]
    return bool(math.prod(hint_or_guess(size) or 0 for size in inner) >= FEWEST_COLUMNS)


def _dim(node: fx.Node, value: torch.Tensor) -> int:
    """The dimension that the node scans."""
    return int(arguments(node.target, node.args, node.kwargs)["dim"]) % (value.dim() or 1)  # type: ignore[arg-type]


def _flips(scan: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The flips of the scanned dimension before and after a scan, or None."""
    first, last, value = scan.args[0], next(iter(scan.users), None), scan.meta["val"]
    if not isinstance(first, fx.Node) or last is None or len(scan.users) > 1 or not isinstance(value, torch.Tensor):
        return None
    if first.target is not aten.flip.default or last.target is not aten.flip.default:
        return None
    rank = value.dim() or 1
    flipped = [{int(dim) % rank for dim in flip.args[1]} for flip in (first, last)]  # type: ignore[arg-type, union-attr]
    if flipped != [{_dim(scan, value)}] * 2:
        return None
    return (first, last) if has_symbols(value) or last.meta["val"].is_contiguous() else None


def _written(graph: fx.Graph, node: fx.Node, kind: str, copies: Copies,
             flip: fx.Node | None = None) -> fx.Node:  # fmt: skip
    """The native call; with the `flip` before it, a scan from the end of what is flipped."""
    from framesmith_backends.native_ops.scans.operator import EXTREMES_SCANNED, SCANNED

    source, value = (node if flip is None else flip).args[0], node.meta["val"]
    assert isinstance(source, fx.Node)
    dim = _dim(node, value if isinstance(value, torch.Tensor) else value[0])
    if isinstance(value, torch.Tensor):
        return call_like(graph, node, SCANNED, copies[source], dim, kind, value.dtype, flip is not None)
    return call_like(graph, node, EXTREMES_SCANNED, copies[source], dim, kind)

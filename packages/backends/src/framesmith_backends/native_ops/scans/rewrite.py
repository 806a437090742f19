"""Running sums, products, extremes and logarithms of sums on the CPU by our own code, see `native_ops/scans/operator`.

Complex numbers, results of few bits and small tensors stay with ATen. What is flipped, scanned and flipped back, the
derivative of a running sum, is scanned from its end on.
"""

from __future__ import annotations

import torch
from torch import fx

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.operators import arguments
from framesmith_aten.symbolic import has_symbols
from framesmith_backends.rewrite.replacing import Copies, Write, dropped, erase_unread, replaced
from framesmith_guards.torch_adapter import aten


def with_scans(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such calls; the same graph if it has none."""
    from framesmith_backends.native_ops.scans.operator import ATENS

    kinds = {target: kind for kind, target in ATENS.items()}
    found = {node: kind for node in gm.graph.nodes if (kind := kinds.get(node.target)) and _is_ours(node, kind)}
    if not found:
        return gm
    backwards = {node: flips for node in found if (flips := _flips(node)) is not None}
    flipped = {last: node for node, (_, last) in backwards.items()}

    def write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
        scan = flipped.get(node)
        if scan is None:
            return _written(graph, node, found[node], copies)
        call = _written(graph, scan, found[scan], copies, backwards[scan][0])
        call.meta = dict(node.meta)
        return call

    instead = dict[fx.Node, Write].fromkeys((*found, *flipped), write)
    graph = replaced(gm.graph, instead | dict.fromkeys(backwards, dropped))
    erase_unread(graph, lambda node: node.target is aten.flip.default)
    return new_module(gm, graph)


def _is_ours(node: fx.Node, kind: str) -> bool:
    """Whether our own code may give what the node gives, and gains by it."""
    from framesmith_backends.native_ops.scans.operator import is_scanned, is_worth_it

    found = node.meta.get("val")
    value = found[0] if isinstance(found, (list, tuple)) else found
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
        return False
    if not is_scanned(kind, value.dtype):
        return False
    return has_symbols(value) or (value.is_contiguous() and is_worth_it(value, _dim(node, value), kind))


def _dim(node: fx.Node, value: torch.Tensor) -> int:
    """Along which the node scans."""
    return int(arguments(node.target, node.args, node.kwargs)["dim"]) % (value.dim() or 1)  # type: ignore[arg-type]


def _flips(scan: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The flips before and behind a scan along the dimension that it goes along, or None."""
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
    """The call of our own; `flip` is what need not be flipped before, nor behind it."""
    from framesmith_backends.native_ops.scans.operator import EXTREMES_SCANNED, SCANNED

    source, value = (node if flip is None else flip).args[0], node.meta["val"]
    assert isinstance(source, fx.Node)
    dim = _dim(node, value if isinstance(value, torch.Tensor) else value[0])
    if isinstance(value, torch.Tensor):
        call = graph.call_function(SCANNED, (copies[source], dim, kind, value.dtype, flip is not None))
    else:
        call = graph.call_function(EXTREMES_SCANNED, (copies[source], dim, kind))
    call.meta = dict(node.meta)
    return call

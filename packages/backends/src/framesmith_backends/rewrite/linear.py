"""Rewrites of matrix products to another provider: a table of (ATen operator, replacement) rows on the FX graph.

x @ w.T (+ bias) in float32 goes to oneDNN where that is measured as faster on this machine than the library
ATen calls (on AMD processors it is by a factor of two, on Intel ones it is not).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
from torch import fx
from torch.fx.node import Argument

aten = torch.ops.aten

# Below this many multiplications the call itself costs more than there is to gain.
SMALLEST_PRODUCT = 1 << 23
# How much faster oneDNN must be in the trial to be used.
WORTHWHILE = 1.15

Row = Callable[[fx.Node], tuple[fx.Node, fx.Node, fx.Node | None] | None]


def _transposed_weight(node: object) -> fx.Node | None:
    """The w of a node that is w.T of a contiguous matrix."""
    if not isinstance(node, fx.Node) or not node.args:
        return None
    is_t = node.target is aten.t.default
    swapped = node.target is aten.permute.default and list(node.args[1]) == [1, 0]  # type: ignore[arg-type]
    swapped = swapped or (node.target is aten.transpose.int and sorted(node.args[1:]) == [0, 1])  # type: ignore[type-var]
    weight = node.args[0]
    if not (is_t or swapped) or not isinstance(weight, fx.Node):
        return None
    return weight if is_plain(weight, 2) else None


def is_plain(node: object, rank: int) -> bool:
    """Whether the node is a contiguous float32 CPU tensor of that rank and fixed shape."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() != rank or value.dtype != torch.float32:
        return False
    if not all(isinstance(n, int) for n in value.shape):
        return False
    return value.device.type == "cpu" and value.layout == torch.strided and value.is_contiguous()


def _addmm(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None] | None:
    """(x, w, bias) of addmm(bias, x, w.T)."""
    bias, x, transposed = node.args[:3]
    weight = _transposed_weight(transposed)
    if weight is None or node.kwargs or not is_plain(x, 2) or not is_plain(bias, 1):
        return None
    assert isinstance(x, fx.Node)
    assert isinstance(bias, fx.Node)
    return (x, weight, bias) if bias.meta["val"].shape[0] == weight.meta["val"].shape[0] else None


def _mm(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None] | None:
    """(x, w, None) of mm(x, w.T)."""
    x, transposed = node.args[:2]
    weight = _transposed_weight(transposed)
    if weight is None or not is_plain(x, 2):
        return None
    assert isinstance(x, fx.Node)
    return x, weight, None


PATTERNS: dict[object, Row] = {aten.addmm.default: _addmm, aten.mm.default: _mm}


def use_onednn(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with its large linear products as oneDNN calls; the same graph if it has none."""
    found = [(node, match) for node in gm.graph.nodes if (match := _match(node)) is not None]
    if not found:
        return gm
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    matches = dict(found)
    for node in gm.graph.nodes:
        match = matches.get(node)
        if match is None:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            continue
        x, weight, bias = match
        args: tuple[Argument, ...] = (copies[x], copies[weight], None if bias is None else copies[bias], "none", [], "")
        copies[node] = graph.call_function(torch.ops.mkldnn._linear_pointwise.default, args)
        copies[node].meta = dict(node.meta)
    for node in reversed(graph.nodes):
        if not node.users and _transposed_weight(node) is not None:
            graph.erase_node(node)
    return fx.GraphModule(gm, graph)


def _match(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None] | None:
    pattern = PATTERNS.get(node.target)
    match = None if pattern is None else pattern(node)
    if match is None:
        return None
    rows, columns = match[0].meta["val"].shape, match[1].meta["val"].shape
    return match if rows[0] * rows[1] * columns[0] >= SMALLEST_PRODUCT else None


def wants_onednn(gm: fx.GraphModule) -> bool:
    """Whether the graph has products to move and the trial says that moving them pays."""
    return any(_match(node) is not None for node in gm.graph.nodes) and onednn_is_faster()


@functools.cache
def onednn_is_faster() -> bool:
    """A trial of a few milliseconds, once for the process: best of several runs of each provider, interleaved."""
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    x, w, b = torch.ones(256, 256), torch.ones(512, 256), torch.ones(512)
    candidates: tuple[Callable[[], object], ...] = (
        lambda: aten.addmm.default(b, x, w.t()),
        lambda: torch.ops.mkldnn._linear_pointwise.default(x, w, b, "none", [], ""),
    )
    best = [float("inf"), float("inf")]
    with torch.no_grad():
        for _ in range(6):
            for k, candidate in enumerate(candidates):
                start = time.perf_counter()
                candidate()
                best[k] = min(best[k], time.perf_counter() - start)
    return best[0] > WORTHWHILE * best[1]

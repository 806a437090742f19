"""Rewrites of matrix products to another provider: a table of (ATen operator, operands) rows on the FX graph.

float32 products go to oneDNN where that is measured as faster on this machine than the library ATen calls (for
x @ w.T on AMD processors it is by a factor of two, on Intel ones it is not). Each form of product, by which of its
operands is a transposed view, has a trial of its own.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx
from torch.fx.node import Argument

from framesmith_aten.graphs.modules import new_module

aten = torch.ops.aten

# Below this many multiplications the call itself costs more than there is to gain.
SMALLEST_PRODUCT = 1 << 23
# How much faster oneDNN must be in the trial to be used.
WORTHWHILE = 1.15
# Products a @ b by operand: n for a contiguous matrix, t for the transposed view of one.
FORMS = ("nt", "nn", "tn")


@dataclass(frozen=True, slots=True)
class Product:
    """bias + a @ b; `weight` is b's matrix before it was transposed, if it was."""

    form: str
    a: fx.Node
    b: fx.Node
    weight: fx.Node | None
    bias: fx.Node | None


def is_plain(node: object, rank: int) -> bool:
    """Whether the node is a contiguous float32 CPU tensor of that rank and fixed shape."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() != rank or value.dtype != torch.float32:
        return False
    if not all(isinstance(n, int) for n in value.shape):
        return False
    return value.device.type == "cpu" and value.layout == torch.strided and value.is_contiguous()


def _before_transposing(node: object) -> fx.Node | None:
    """The contiguous matrix of which the node is the transposed view."""
    if not isinstance(node, fx.Node) or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    swapped = node.target is aten.permute.default and node.args[1] == [1, 0]
    return node.args[0] if swapped and is_plain(node.args[0], 2) else None


def _product(a: object, b: object, bias: fx.Node | None) -> Product | None:
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return None
    letters = ""
    for operand in (a, b):
        turned = _before_transposing(operand) is not None
        if not turned and not is_plain(operand, 2):
            return None
        letters += "t" if turned else "n"
    return Product(letters, a, b, _before_transposing(b), bias) if letters in FORMS else None


def _addmm(node: fx.Node) -> Product | None:
    bias, a, b = node.args[:3]
    if node.kwargs or not isinstance(bias, fx.Node) or not is_plain(bias, 1):
        return None
    return _product(a, b, bias) if bias.meta["val"].shape[0] == node.meta["val"].shape[1] else None


def _mm(node: fx.Node) -> Product | None:
    a, b = node.args[:2]
    return _product(a, b, None)


PATTERNS: dict[object, Callable[[fx.Node], Product | None]] = {aten.addmm.default: _addmm, aten.mm.default: _mm}


def _match(node: fx.Node) -> Product | None:
    pattern = PATTERNS.get(node.target)
    if pattern is None or not is_plain(node, 2):
        return None
    found = pattern(node)
    if found is None:
        return None
    rows, inner = found.a.meta["val"].shape
    return found if rows * inner * node.meta["val"].shape[1] >= SMALLEST_PRODUCT else None


def use_onednn(gm: fx.GraphModule, forms: frozenset[str] = frozenset(FORMS)) -> fx.GraphModule:
    """The graph with its large products of these forms as oneDNN calls; the same graph if it has none."""
    matches = {node: match for node in gm.graph.nodes if (match := _match(node)) is not None and match.form in forms}
    if not matches:
        return gm
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        match = matches.get(node)
        copies[node] = graph.node_copy(node, lambda n: copies[n]) if match is None else _moved(graph, match, copies)
        copies[node].meta = dict(node.meta)
    for node in reversed(graph.nodes):
        if not node.users and _before_transposing(node) is not None:
            graph.erase_node(node)
    return new_module(gm, graph)


def _moved(graph: fx.Graph, match: Product, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """oneDNN's call, which takes the transpose of the second operand."""
    if match.weight is not None:
        weight = copies[match.weight]
    else:
        weight = graph.call_function(aten.permute.default, (copies[match.b], [1, 0]))
        weight.meta["val"] = match.b.meta["val"].t()
    bias = None if match.bias is None else copies[match.bias]
    args: tuple[Argument, ...] = (copies[match.a], weight, bias, "none", [], "")
    return graph.call_function(torch.ops.mkldnn._linear_pointwise.default, args)


def with_fastest_products(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with its products where a trial says they are fastest; the trial runs if there are any to move."""
    forms = {match.form for node in gm.graph.nodes if (match := _match(node)) is not None}
    faster = frozenset(form for form in forms if onednn_is_faster(form))
    return use_onednn(gm, faster) if faster else gm


@functools.cache
def onednn_is_faster(form: str) -> bool:
    """A trial of a few milliseconds, once for the process: best of several runs of each provider, interleaved."""
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    a = torch.ones(256, 384) if form[0] == "n" else torch.ones(384, 256).t()
    b = torch.ones(384, 512) if form[1] == "n" else torch.ones(512, 384).t()
    best = [float("inf"), float("inf")]
    with torch.no_grad():
        for _ in range(6):
            for k, candidate in enumerate((_by_aten, _by_onednn)):
                start = time.perf_counter()
                candidate(a, b)
                best[k] = min(best[k], time.perf_counter() - start)
    return best[0] > WORTHWHILE * best[1]


def _by_aten(a: torch.Tensor, b: torch.Tensor) -> object:
    return aten.mm.default(a, b)


def _by_onednn(a: torch.Tensor, b: torch.Tensor) -> object:
    return torch.ops.mkldnn._linear_pointwise.default(a, b.t(), None, "none", [], "")

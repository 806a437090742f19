"""Rewrites of matmuls to another provider: a table of (ATen operator, operands) rows on the FX graph.

float32 matmuls go to the provider that is the fastest for their class on this machine (`providers.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx
from torch.fx.node import Argument

from framesmith_backends.native_ops.base import is_on_cpu, rewritten
from framesmith_backends.native_ops.matmul.providers import MatmulClass, class_of, fastest, why_not
from framesmith_backends.rewrite.replacing import Copies
from framesmith_backends.torch_adapter import mkldnn
from framesmith_guards.torch_adapter import aten

#: Below this many multiplications the call itself costs more than there is to gain.
SMALLEST_MATMUL = 1 << 23
#: The layouts of a and b of matmuls a @ b: n for a contiguous matrix, t for the transposed view of one.
LAYOUTS = ("nt", "nn", "tn")


@dataclass(frozen=True, slots=True)
class MatmulMatch:
    """bias + a @ b; `weight` is b's matrix before it was transposed, if it was."""

    layouts: str
    a: fx.Node
    b: fx.Node
    weight: fx.Node | None
    bias: fx.Node | None


def is_plain(node: object, rank: int) -> bool:
    """Whether the node is a contiguous float32 CPU tensor of that rank and fixed shape."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not is_on_cpu(value) or value.dim() != rank or value.dtype != torch.float32:
        return False
    return all(isinstance(n, int) for n in value.shape) and value.is_contiguous()


def _before_transposing(node: object) -> fx.Node | None:
    """The contiguous matrix of which the node is the transposed view."""
    if not isinstance(node, fx.Node) or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    swapped = node.target is aten.permute.default and node.args[1] == [1, 0]
    return node.args[0] if swapped and is_plain(node.args[0], 2) else None


def _match(node: fx.Node) -> MatmulMatch | None:
    """The matmul of a node that is large enough for another provider."""
    if node.target not in (aten.addmm.default, aten.mm.default) or node.kwargs or not is_plain(node, 2):
        return None
    *biases, a, b = node.args
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return None
    before = [_before_transposing(one) for one in (a, b)]
    layouts = "".join("n" if one is None else "t" for one in before)
    if layouts not in LAYOUTS or not all(one or is_plain(other, 2) for one, other in zip(before, (a, b), strict=True)):
        return None
    (rows, inner), columns = a.meta["val"].shape, node.meta["val"].shape[1]
    if rows * inner * columns < SMALLEST_MATMUL:
        return None
    bias = biases[0] if biases else None
    if bias is not None and not (
        isinstance(bias, fx.Node) and is_plain(bias, 1) and bias.meta["val"].shape[0] == columns
    ):
        return None
    return MatmulMatch(layouts, a, b, before[1], bias)


def _class_of(match: MatmulMatch) -> MatmulClass:
    (m, k), n = match.a.meta["val"].shape, match.b.meta["val"].shape[1]
    return class_of(match.layouts, m, n, k, match.bias is not None)


def use_onednn(gm: fx.GraphModule, layouts: frozenset[str] = frozenset(LAYOUTS)) -> fx.GraphModule:
    """The graph with its large matmuls of these layouts as oneDNN calls; the same graph if it has none."""
    return _moved(gm, lambda match: "onednn" if match.layouts in layouts else "aten")


def use_native(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with its large matmuls as calls of the native kernel; the same graph if it has none."""
    return _moved(gm, lambda match: "native")


def with_fastest_matmuls(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with its large matmuls where they were timed as the fastest."""
    return _moved(gm, lambda match: fastest(_class_of(match)))


def _moved(gm: fx.GraphModule, provider: Callable[[MatmulMatch], str]) -> fx.GraphModule:
    """The graph with its matmuls at the providers chosen; the same graph if all stay with ATen."""
    chosen: dict[fx.Node, tuple[MatmulMatch, str]] = {}
    for node in gm.graph.nodes:
        match = _match(node)
        name = "aten" if match is None else provider(match)
        if match is not None and name in WRITERS and why_not(name) is None:
            chosen[node] = (match, name)

    def write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
        match, name = chosen[node]
        made = WRITERS[name](graph, match, copies)
        made.meta = dict(node.meta)
        return made

    return rewritten(gm, dict.fromkeys(chosen, write), lambda node: _before_transposing(node) is not None)


def _onednn(graph: fx.Graph, match: MatmulMatch, copies: Copies) -> fx.Node:
    """oneDNN's call, which takes the transpose of the second operand."""
    if match.weight is not None:
        weight = copies[match.weight]
    else:
        weight = graph.call_function(aten.permute.default, (copies[match.b], [1, 0]))
        weight.meta["val"] = match.b.meta["val"].t()
    bias = None if match.bias is None else copies[match.bias]
    args: tuple[Argument, ...] = (copies[match.a], weight, bias, "none", [], "")
    return graph.call_function(mkldnn._linear_pointwise.default, args)


def _native(graph: fx.Graph, match: MatmulMatch, copies: Copies) -> fx.Node:
    """The native operator, which takes operands of any strides."""
    from framesmith_backends.native_ops.matmul.operator import OPERATOR

    bias = None if match.bias is None else copies[match.bias]
    return graph.call_function(OPERATOR, (copies[match.a], copies[match.b], bias))


#: The writers of calls of each provider but ATen.
WRITERS: dict[str, Callable[[fx.Graph, MatmulMatch, Copies], fx.Node]] = {"onednn": _onednn, "native": _native}

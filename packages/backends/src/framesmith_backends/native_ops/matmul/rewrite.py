"""Rewrites of matmuls to another provider: a table of (ATen operator, operands) rows on the FX graph.

float32 matmuls go to the provider that is the fastest for their class on this machine (`providers.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from framesmith_backends.native_ops.base import is_on_cpu, rewritten
from framesmith_backends.native_ops.matmul.providers import (
    PROVIDERS,
    MatmulClass,
    MatmulMatch,
    Write,
    class_of,
    fastest,
)
from framesmith_backends.rewrite.replacing import Copies
from framesmith_guards.torch_adapter import aten

#: Below this many multiplications the call itself costs more than there is to gain.
SMALLEST_MATMUL = 1 << 23
#: The layouts of a and b of matmuls a @ b: n for a contiguous matrix, t for the transposed view of one.
LAYOUTS = ("nt", "nn", "tn")


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


def move_matmuls(gm: fx.GraphModule, provider: str) -> fx.GraphModule:
    """The graph with its large matmuls at that provider; "auto": at the one that was timed as the fastest for each.

    The same graph if all stay with ATen.
    """
    return _moved(gm, lambda match: fastest(_class_of(match)) if provider == "auto" else provider)


def _moved(gm: fx.GraphModule, provider: Callable[[MatmulMatch], str]) -> fx.GraphModule:
    """The graph with its matmuls at the providers chosen; the same graph if all stay with ATen."""
    chosen: dict[fx.Node, tuple[MatmulMatch, Write]] = {}
    for node in gm.graph.nodes:
        match = _match(node)
        row = PROVIDERS["aten" if match is None else provider(match)]
        if match is not None and row.write is not None and row.why_not() is None:
            chosen[node] = (match, row.write)

    def write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
        match, write_call = chosen[node]
        made = write_call(graph, match, copies)
        made.meta = dict(node.meta)
        return made

    return rewritten(gm, dict.fromkeys(chosen, write), lambda node: _before_transposing(node) is not None)

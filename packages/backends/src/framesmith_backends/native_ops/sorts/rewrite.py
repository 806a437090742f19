"""Sorts on the CPU by our own code, see `native_ops/sorts/operator`.

Where only the values or only the places are read, only these are computed.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.operators import arguments
from framesmith_aten.symbolic import has_symbols
from framesmith_backends.ir.dtypes import NUMBERS
from framesmith_backends.rewrite.replacing import Copies, Write, dropped, replaced
from framesmith_guards.torch_adapter import aten


def with_sorts(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such calls; the same graph if it has none."""
    targets = (aten.sort.default, aten.sort.stable)
    found = [node for target in targets for node in gm.graph.find_nodes(op="call_function", target=target)]
    ours = {node for node in found if _is_ours(node)}
    if not ours:
        return gm
    parts = [part for node in ours for part in node.users if part.target is operator.getitem]
    unread = dict[fx.Node, Write].fromkeys((part for part in parts if not part.users), dropped)
    return new_module(gm, replaced(gm.graph, unread | dict.fromkeys(ours, _write)))


def _parts(node: fx.Node) -> dict[int, list[fx.Node]] | None:
    """The nodes that are the values, and the places; None if something reads both at once."""
    parts: dict[int, list[fx.Node]] = {}
    for reader in node.users:
        if reader.target is not operator.getitem:
            return None
        if reader.users:
            parts.setdefault(int(reader.args[1]), []).append(reader)  # type: ignore[arg-type]
    return parts


def _call(node: fx.Node) -> tuple[int, bool, bool]:
    """Along which dimension, whether the largest come first, and whether equal ones stay in their order."""
    given = arguments(node.target, node.args, node.kwargs)  # type: ignore[arg-type]
    return int(given["dim"]), bool(given["descending"]), bool(given.get("stable"))


def _is_ours(node: fx.Node) -> bool:
    """Whether our own code may give what the node gives, and gains by it."""
    from framesmith_backends.native_ops.sorts.operator import is_ours

    value = node.meta["val"][0] if "val" in node.meta else None
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
        return False
    parts = _parts(node)
    if value.dtype not in NUMBERS or value.dim() == 0 or parts == {}:
        return False
    dim, descending, stable = _call(node)
    return has_symbols(value) or is_ours(value, dim % value.dim(), descending, stable, parts is None or 1 in parts)


def _write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node | None:
    """The call of our own, which stands for the one part of the results that is read, if it is one."""
    from framesmith_backends.native_ops.sorts.operator import PLACES_SORTED, SORTED, VALUES_SORTED

    source, parts = node.args[0], _parts(node)
    assert isinstance(source, fx.Node)
    given = (copies[source], *_call(node))
    if parts is None or len(parts) > 1:
        call = graph.call_function(SORTED, given)
        call.meta = dict(node.meta)
        return call
    [(which, readers)] = parts.items()
    call = graph.call_function(PLACES_SORTED if which else VALUES_SORTED, given)
    call.meta = dict(readers[0].meta)
    copies.update(dict.fromkeys(readers, call))
    return None

"""Writes calls of the native sorts into graphs of the CPU; of values or indices alone where only these are read."""

from __future__ import annotations

import operator

from torch import fx

from framesmith_aten.operators import arguments
from framesmith_aten.symbolic import has_symbols
from framesmith_backends.ir.dtypes import NUMBERS
from framesmith_backends.native_ops.base import call_like, is_on_cpu, rewritten
from framesmith_backends.rewrite.replacing import Copies, Write, dropped
from framesmith_guards.torch_adapter import aten


def with_sorts(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such calls; the same graph if it has none."""
    targets = (aten.sort.default, aten.sort.stable)
    found = [node for target in targets for node in gm.graph.find_nodes(op="call_function", target=target)]
    native = {node for node in found if _is_native(node)}
    parts = [part for node in native for part in node.users if part.target is operator.getitem]
    unread = dict[fx.Node, Write].fromkeys((part for part in parts if not part.users), dropped)
    return rewritten(gm, unread | dict.fromkeys(native, _write))


def _parts(node: fx.Node) -> dict[int, list[fx.Node]] | None:
    """The nodes that are the values (0) and the indices (1); None if something reads both at once."""
    parts: dict[int, list[fx.Node]] = {}
    for reader in node.users:
        if reader.target is not operator.getitem:
            return None
        if reader.users:
            parts.setdefault(int(reader.args[1]), []).append(reader)  # type: ignore[arg-type]
    return parts


def _call(node: fx.Node) -> tuple[int, bool, bool]:
    """The call's `dim`, `descending` and `stable`."""
    given = arguments(node.target, node.args, node.kwargs)  # type: ignore[arg-type]
    return int(given["dim"]), bool(given["descending"]), bool(given.get("stable"))


def _is_native(node: fx.Node) -> bool:
    """Whether the native sort computes the node's results, and faster than ATen."""
    from framesmith_backends.native_ops.sorts.operator import is_faster

    value = node.meta["val"][0] if "val" in node.meta else None
    if not is_on_cpu(value):
        return False
    parts = _parts(node)
    if value.dtype not in NUMBERS or value.dim() == 0 or parts == {}:
        return False
    dim, descending, stable = _call(node)
    return has_symbols(value) or is_faster(value, dim % value.dim(), descending, stable, parts is None or 1 in parts)


def _write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node | None:
    """The native call, in place of the one result that is read where it is one."""
    from framesmith_backends.native_ops.sorts.operator import INDICES_SORTED, SORTED, VALUES_SORTED

    source, parts = node.args[0], _parts(node)
    assert isinstance(source, fx.Node)
    given = (copies[source], *_call(node))
    if parts is None or len(parts) > 1:
        return call_like(graph, node, SORTED, *given)
    [(which, readers)] = parts.items()
    call = call_like(graph, readers[0], INDICES_SORTED if which else VALUES_SORTED, *given)
    copies.update(dict.fromkeys(readers, call))
    return None

"""ATen calls that write to an input themselves, where the graph copies what they give onto it at its end.

`input.index_copy_(...)` of a program arrives as a functional call, which copies the whole input, and a copy back. Here
such a call is done in place again, also on a part of an input (`rewrite/partial_writes.py`).

Note [In place]: other calls run before the write and others behind it, so it is done only where no result differs. The
call alone reads that part of the input, and what it gives is no result, nor is a view of that. Where a call behind it
fails, the program runs again as it is, from inputs of which one is written already: so it has to be a call that may be
repeated (`framesmith_aten.operators.overwrites`). What stands before it in the graph runs before it.
"""

from __future__ import annotations

from torch import fx

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.nodes import view_root, view_source
from framesmith_aten.operators import in_place_form, is_view, overwrites
from framesmith_aten.symbolic import all_equal
from framesmith_backends.rewrite.regions import Region, region_of
from framesmith_backends.rewrite.replacing import Copies, Write, dropped, replaced
from framesmith_guards.torch_adapter import OpOverload, aten


def with_calls_in_place(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such calls in place; the same graph if it has none. Kernels replace elements beside an input."""
    writes = {
        write: write.args[1]
        for write in gm.graph.find_nodes(op="call_function", target=aten.copy_.default)
        if why_not_in_place(write) is None
    }
    if not writes:
        return gm
    instead = dict[fx.Node, Write].fromkeys(writes.values(), _write)
    return new_module(gm, replaced(gm.graph, instead | dict.fromkeys(writes, dropped)))


def _write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
    form = in_place_form(node.target)
    assert form is not None
    copy = graph.node_copy(node, copies.__getitem__)
    copy.target = form
    copy.meta = dict(node.meta)
    return copy


def why_not_in_place(write: fx.Node) -> str | None:
    """Why what is copied onto an input at the graph's end cannot be written there where it is computed, or None."""
    target, call = write.args[:2]
    if not isinstance(target, fx.Node) or not isinstance(call, fx.Node) or write.kwargs or len(write.args) != 2:
        return "no plain copy"
    part = region_of(target)
    if part is None or not isinstance(call.target, OpOverload):
        return "no input, or no ATen call"
    source = call.args[0] if call.args else None
    if not isinstance(source, fx.Node) or region_of(source) != part or in_place_form(call.target) is None:
        return "the call is of no form that writes to the input"
    if not overwrites(call.target, call.args, call.kwargs):
        return "the call must not be repeated"
    if _count(call, source) != 1 or write.users or _is_read(part, {(target, write), (source, call)}):
        return "the input is read elsewhere"
    if not _has_same_layout(target, call):
        return "the result is laid out in another way"
    return "its result is one of the graph's" if _is_shown({call, part.root}) else None


def _is_read(part: Region, known: set[tuple[fx.Node, fx.Node]]) -> bool:
    """Whether others than the `known` pairs (what shows it, its user) may read, or write to, that part of an input."""
    views = [part.root]
    for view in views:  # grows
        region = region_of(view)
        is_disjoint = region is not None and region.is_disjoint_from(part)
        for user in view.users:
            if view_source(user) is not None or is_view(user.target):
                views.append(user)
            elif not is_disjoint and (view, user) not in known:
                return True
    return False


def _count(call: fx.Node, operand: fx.Node) -> int:
    found: list[fx.Node] = []
    fx.node.map_arg((call.args, call.kwargs), found.append)
    return found.count(operand)


def _has_same_layout(one: fx.Node, two: fx.Node) -> bool:
    first, second = one.meta["val"], two.meta["val"]
    same = first.dtype == second.dtype and first.dim() == second.dim()
    return same and all_equal(first.shape, second.shape) and all_equal(first.stride(), second.stride())


def _is_shown(roots: set[fx.Node]) -> bool:
    """Whether a result of the graph shows the memory of one of these."""
    graph = next(iter(roots)).graph
    return any(view_root(result) in roots for result in graph.output_node().all_input_nodes)

"""Grouped-query attention: programs repeat keys and values for each head of the queries before they call attention.

ATen's kernel for the CPU takes one head of keys for several of queries by itself, with the same numbers, and copies
nothing.
"""

from __future__ import annotations

from torch import fx
from torch.fx.node import Argument

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.tidying.cleanup import eliminate_dead
from framesmith_aten.symbolic import all_equal
from framesmith_backends.ir.ops import CPU_ATTENTION
from framesmith_backends.reporting import Refusal
from framesmith_backends.rewrite.replacing import Copies, replaced
from framesmith_guards.torch_adapter import aten

Args = tuple[Argument, ...]


def with_cheaper_attention(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph whose attention reads keys and values before they are repeated; the same graph if it has none."""
    nodes = gm.graph.find_nodes(op="call_function", target=CPU_ATTENTION)
    changed = {node: args for node in nodes if not isinstance(args := grouped_heads(node), Refusal)}
    if not changed:
        return gm

    def write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node:
        copy = graph.node_copy(node, copies.__getitem__)
        copy.args = fx.node.map_arg(changed[node], copies.__getitem__)
        return copy

    graph = replaced(gm.graph, dict.fromkeys(changed, write))
    eliminate_dead(graph)
    return new_module(gm, graph)


def grouped_heads(node: fx.Node) -> Args | Refusal:
    """The arguments of attention with the keys and values that were repeated; why not, if they were not."""
    query, keys, values, *rest = node.args
    before: list[fx.Node] = []
    for operand in (keys, values):
        one = _before_repeating(operand, node)
        if isinstance(one, Refusal):
            return one
        before.append(one)
    first, second = (one.meta["val"] for one in before)
    if first.shape[1] != second.shape[1]:
        return Refusal("keys and values have another number of heads")
    return (query, *before, *rest)


def _before_repeating(operand: object, user: fx.Node) -> fx.Node | Refusal:
    """The tensor that `x[:, :, None].expand(..., times, ...).reshape(...)` repeats, heads being its second dimension.

    A reason where the operand is not made so, or is read elsewhere: then it has to be made anyway.
    """
    steps: list[fx.Node] = []
    readers, step = {user}, operand
    for target in (aten.view.default, aten.clone.default, aten.expand.default, aten.unsqueeze.default):
        if not isinstance(step, fx.Node) or step.target is not target:
            return Refusal("no repeated heads")
        if {*step.users} != readers:
            return Refusal("what is repeated is read elsewhere")
        steps.append(step)
        readers, step = {step}, step.args[0]
    joined, _, repeated, widened = (one.meta["val"] for one in steps)
    if not isinstance(step, fx.Node) or widened.dim() != 5 or steps[-1].args[1] not in (2, -3):
        return Refusal("repeated along another dimension")
    source = step.meta["val"]
    batch, heads, *rest = source.shape
    times = repeated.shape[2]
    if not all(isinstance(number, int) for number in (heads, times)):
        return Refusal("the number of heads changes")
    is_repeated = all_equal(repeated.shape, (batch, heads, times, *rest)) and joined.dim() == 4
    if not is_repeated or not all_equal(joined.shape, (batch, heads * times, *rest)):
        return Refusal("repeated along another dimension")
    return step if source.stride(-1) == 1 else Refusal("the kernel takes rows without gaps")

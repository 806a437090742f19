"""Drops what scans compute for nobody: results that nothing uses, and operands that their bodies do not read.

A training step's scan gives stacks of what its backward pass may need; that pass shows what it does need.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from framesmith_aten.graphs.control_flow import bodies_of, scan
from framesmith_aten.graphs.tidying.cleanup import eliminate_dead


def drop_unused_steps(graph: fx.Graph) -> None:
    """Drop the unused results and operands of the graph's scans, in place; what computes the operands may be dead."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and node.target is scan:
            _drop(graph, node)


def _drop(graph: fx.Graph, node: fx.Node) -> None:
    for item in [*node.users]:
        if item.target is operator.getitem and not item.users:
            graph.erase_node(item)
    counts: Any = node.args[1]
    carries, sliced = counts
    if not all(user.target is operator.getitem for user in node.users):
        return
    used = {user.args[1] for user in node.users}
    kept = [at for at in range(len(node.meta["val"])) if at < carries or at in used]
    [body] = bodies_of(node)
    output = body.graph.output_node()
    given: Any = output.args[0]
    output.args = (tuple([given[at] for at in kept]),)
    eliminate_dead(body.graph)
    operands, placeholders = node.args[3:], body.graph.find_nodes(op="placeholder")
    read = [at for at, one in enumerate(placeholders) if at < carries or one.users]
    if not any(carries <= at < carries + sliced for at in read):
        read = sorted({*read, carries})  # a slice of something says how many steps there are
    for at, one in enumerate(placeholders):
        if at not in read:
            body.graph.erase_node(one)
    body.recompile()
    sliced = sum(carries <= at < carries + sliced for at in read)
    node.args = (*node.args[:1], (carries, sliced), node.args[2], *(operands[at] for at in read))
    node.meta["val"] = tuple([node.meta["val"][at] for at in kept])
    where: dict[Any, int] = {at: new for new, at in enumerate(kept)}
    for user in [*node.users]:
        user.args = (node, where[user.args[1]])

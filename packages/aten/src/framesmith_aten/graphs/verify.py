"""The executable invariants of the graphs that backends receive."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from framesmith_aten.errors import GraphInvariantError
from framesmith_aten.graphs.control_flow import BODIES, bodies_of
from framesmith_aten.graphs.numbers import FUNCTIONS, is_number_node
from framesmith_aten.operators import IDENTITY_VIEWS, is_mutable, is_view
from framesmith_aten.symbolic import SYMBOLIC
from framesmith_guards.torch_adapter import OpOverload, aten

_OPS = frozenset({"placeholder", "get_attr", "call_function", "output"})


def verify(graph: fx.Graph) -> None:
    """Raise GraphInvariantError, with the node's name, where `graph` is not as `contract.Compiler` requires."""
    reason = why_invalid(graph)
    if reason is not None:
        raise GraphInvariantError(f"{reason}\n{graph}")


def why_invalid(graph: fx.Graph) -> str | None:
    """Return the first broken invariant, or None for a valid graph."""
    written: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        reason = _why_node(node)
        if reason is not None:
            return f"node {node.name}: {reason}"
        stale = [source for source in node.all_input_nodes if source in written]
        if stale:
            return f"node {node.name} reads {stale[0].name} after {written[stale[0]].name} overwrote it"
        if node.target is aten.copy_.default:
            written[node.args[0]] = node
    return None


def _why_node(node: fx.Node) -> str | None:
    if node.op not in _OPS:
        return f"op {node.op!r} is not one of {sorted(_OPS)}"
    if node.op == "output":
        return None
    if "val" not in node.meta:
        return 'has no meta["val"]'
    if _holds_symbol(node.args) or (node.kwargs and _holds_symbol(tuple(node.kwargs.values()))):
        return "has a symbol as an argument, not its node"
    if node.op != "call_function":
        return None
    return _why_call(node)


def _holds_symbol(arguments: Any) -> bool:
    for argument in arguments:
        if type(argument) in SYMBOLIC or (isinstance(argument, (list, tuple)) and _holds_symbol(argument)):
            return True
    return False


def _why_call(node: fx.Node) -> str | None:
    target: Any = node.target
    if target is operator.getitem:
        return None
    if is_number_node(node) and target in FUNCTIONS:
        return None
    if target in BODIES:
        return _why_bodies(node)
    if not isinstance(target, OpOverload):
        return f"calls {target}, which is not an ATen overload"
    if target in IDENTITY_VIEWS:
        return f"calls {target}, an identity in a functional graph"
    if target is aten.copy_.default:
        destination = node.args[0]
        placed = isinstance(destination, fx.Node) and destination.op == "placeholder"
        return None if placed and not node.users else "copy_ must write to a placeholder and have no users"
    if is_view(target) and not isinstance(node.args[0], fx.Node):
        return f"calls {target}, a view, on {node.args[0]!r}, which has no memory"
    return f"calls {target}, which mutates" if is_mutable(target) else None


def _why_bodies(node: fx.Node) -> str | None:
    """Return why a call of control flow is none, or what its bodies break."""
    for held in node.args[: BODIES[node.target]]:
        if not isinstance(held, fx.Node) or held.op != "get_attr":
            return f"takes {held!r}, which holds no body"
    reasons = ((body, why_invalid(body.graph)) for body in bodies_of(node))
    return next((f"in a body: {reason}\n{body.graph}" for body, reason in reasons if reason is not None), None)

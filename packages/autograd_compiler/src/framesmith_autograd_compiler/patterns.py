"""Recorded passes that are alike but for the floats in them: one program serves all.

The engine takes a float that a derivative keeps (a bound, a slope, a probability) for a part of what the pass is, so
that a schedule of it gives another pass each time. Here floats are taken out, and are inputs of the program.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from framesmith_autograd_compiler import calls


def lift_floats(graph: fx.Graph) -> list[float]:
    """Put placeholders `number_0`, ... in place of the floats in the graph's derivatives; gives the floats."""
    floats: list[float] = []
    first = next(iter(graph.nodes))

    def placeholder(value: Any) -> Any:
        if type(value) is float:
            with graph.inserting_before(first):
                node = graph.placeholder(f"number_{len(floats)}")
            floats.append(value)
            return node
        if type(value) in (list, tuple):
            return type(value)(map(placeholder, value))
        return value

    for node in list(graph.nodes):
        if isinstance(node.target, calls.NodeCall):
            node.args = tuple(map(placeholder, node.args))
    return floats


def pattern_of(graph: fx.Graph) -> Any:
    """Equal for graphs of the same calls of the same operands; None where an operand cannot be compared."""
    places = {node: at for at, node in enumerate(graph.nodes)}

    def shown(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return fx.Node, places[value]
        if isinstance(value, (list, tuple)):
            return type(value), *map(shown, value)
        return type(value), value.hex() if type(value) is float else value

    pattern = tuple((node.op, _identity(node), shown(node.args), shown([*node.kwargs.items()])) for node in graph.nodes)
    try:
        hash(pattern)
    except TypeError:
        return None
    return pattern


def _identity(node: fx.Node) -> Any:
    """What a node calls; the name of a placeholder, which says what it stands for."""
    if node.op == "placeholder":
        return node.name
    return node.target.cls if isinstance(node.target, calls.Evaluation) else node.target

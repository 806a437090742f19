"""Facts about operators for the nodes of ATen graphs, whose values are fake tensors in `meta["val"]`."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

from framesmith_aten import failures
from framesmith_aten.graphs.control_flow import BODIES, bodies_of
from framesmith_aten.graphs.numbers import TOTAL, is_number_node
from framesmith_aten.operators import arguments, is_effect, is_view
from framesmith_aten.symbolic import hint_or_guess, holds
from framesmith_guards.torch_adapter import OpOverload, aten


def value_of(argument: Any) -> Any:
    return fx.node.map_arg(argument, lambda node: node.meta["val"])


def is_pure(node: fx.Node) -> bool:
    """Whether the node may be dropped when unused, and merged with an equal one."""
    if node.op == "get_attr" or node.target is operator.getitem:
        return True
    if node.target in BODIES:
        return not any(_has_call(body, _is_impure) for body in bodies_of(node))
    return node.op == "call_function" and (not is_effect(node.target) or is_number_node(node))


def _is_impure(node: fx.Node) -> bool:
    return not is_pure(node)


#: The answers of `_has_call` by body: many nodes call one. Each with the length of the graph that it is about.
_answers: WeakKeyDictionary[fx.GraphModule, dict[Callable[[fx.Node], bool], tuple[int, bool]]] = WeakKeyDictionary()


def _has_call(body: fx.GraphModule, of_kind: Callable[[fx.Node], bool]) -> bool:
    """Whether a call in the body of a node of control flow is `of_kind`."""
    known, length = _answers.setdefault(body, {}), len(body.graph.nodes)
    answer = known.get(of_kind)
    if answer is None or answer[0] != length:
        found = any(of_kind(inner) for inner in body.graph.nodes if inner.op == "call_function")
        answer = known[of_kind] = length, found
    return answer[1]


def may_fail(node: fx.Node) -> bool:
    """Whether the call can raise though dtypes and shapes are right."""
    if node.op != "call_function":
        return False
    if node.target in BODIES:
        return any(_has_call(body, may_fail) for body in bodies_of(node))
    if not isinstance(node.target, OpOverload):
        return is_number_node(node) and node.target not in TOTAL and _of_free_numbers(node)
    return failures.may_fail(node.target, value_of(node.args), value_of(node.kwargs))


def _of_free_numbers(node: fx.Node) -> bool:
    """Whether a scalar depends on anything but sizes: on a float, or on a tensor's data."""
    values = [operand.meta["val"] for operand in node.all_input_nodes]
    return any(isinstance(value, torch.SymFloat) or not value.node.has_hint() for value in values)


def view_source(node: fx.Node) -> fx.Node | None:
    """Return the operand whose memory `node` shares by being a view of it, or None."""
    if node.target is operator.getitem:
        parent = node.args[0]
        if isinstance(parent, fx.Node) and is_view(parent.target):
            return view_source(parent)
        return None
    if node.op == "call_function" and is_view(node.target) and isinstance(node.args[0], fx.Node):
        return node.args[0]
    return None


def view_root(node: fx.Node) -> fx.Node:
    while (source := view_source(node)) is not None:
        node = source
    return node


def are_disjoint(first: fx.Node, second: fx.Node) -> bool:
    """Whether two views of one memory are known to have no element in common: they are views of disjoint parts."""
    pairs = zip(_view_chain(first), _view_chain(second), strict=False)
    steps = (after for before, after in itertools.pairwise(pairs) if before[0] is before[1])
    parted = next((step for step in steps if step[0] is not step[1]), None)
    return parted is not None and _are_disjoint_parts(*parted)


def _view_chain(node: fx.Node) -> list[fx.Node]:
    """Return the views from the owner of the memory to `node`."""
    source = view_source(node)
    return [node] if source is None else [*_view_chain(source), node]


def _are_disjoint_parts(first: fx.Node, second: fx.Node) -> bool:
    """Whether two views of one tensor are different results of one call, or disjoint ranges of a dimension."""
    if first.target is operator.getitem and second.target is operator.getitem:
        return first.args[0] is second.args[0] and first.args[1] != second.args[1]
    one, two = _range(first), _range(second)
    if one is None or two is None or one[0] != two[0]:
        return False
    return holds(one[2] <= two[1]) or holds(two[2] <= one[1])


def _range(node: fx.Node) -> tuple[int, Any, Any] | None:
    """Return (dim, begin, end) of a view of a range of one dimension, or None; also for indices from the end."""
    if node.target not in (aten.select.int, aten.slice.Tensor):
        return None
    given = arguments(node.target, value_of(node.args), value_of(node.kwargs))
    if node.target is aten.select.int:
        begin, end = given["index"], given["index"] + 1
    else:
        begin = 0 if given["start"] is None else given["start"]
        end = sys.maxsize if given["end"] is None else given["end"]
    return (given["dim"] % given["self"].dim(), begin, end) if holds(begin >= 0) and holds(end >= 0) else None


def dependents(graph: fx.Graph, sources: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the sources and every call that depends on one of them."""
    found = set(sources)
    for node in graph.nodes:
        if node.op != "output" and any(operand in found for operand in node.all_input_nodes):
            found.add(node)
    return found


def factory_options(value: torch.Tensor) -> dict[str, Any]:
    """Return the keyword arguments of a factory (`full`, `empty_strided`) for a tensor of the type of `value`."""
    return {"dtype": value.dtype, "layout": value.layout, "device": value.device, "pin_memory": False}


def tensor_bytes(value: Any) -> int:
    """Return the bytes of a tensor's elements (with hints for symbols), summed over a tuple; 0 for anything else."""
    if isinstance(value, torch.Tensor):
        return int(hint_or_guess(value.numel())) * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(tensor_bytes(item) for item in value)
    return 0

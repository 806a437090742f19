"""Symbolic numbers in graphs: what may make one, and the nodes of integer expressions.

See docs/design/0015-numbers-that-change.md for who may rely on what.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

if TYPE_CHECKING:
    import sympy

#: What a number in a graph is while tracing.
SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)

_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs", "lshift", "rshift", "and_", "or_", "xor",
    "invert", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
#: Functions of numbers that a number node may call; what they give for Python numbers is what the node is at a call.
FUNCTIONS: Final = frozenset({
    *(getattr(operator, name) for name in _OPERATORS),
    *(function for function in vars(math).values() if callable(function)),
    torch.sym_float, torch.sym_int, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sqrt,
    int, float, bool, round, min, max, pow, divmod,
})  # fmt: skip

_aten = torch.ops.aten
#: The operator that asks a tensor for a size or stride of a dimension, or for its offset; see `numbers_of`.
LAYOUT_OPERATORS: Final = {
    "size": _aten.sym_size.int, "stride": _aten.sym_stride.int, "offset": _aten.sym_storage_offset.default,
}  # fmt: skip
#: Operators that give a number of a tensor's layout.
LAYOUT_QUERIES: Final = frozenset({*LAYOUT_OPERATORS.values(), _aten.sym_numel.default})


def is_symbolic(value: object) -> bool:
    """Whether a value is a number that is not known while tracing."""
    return isinstance(value, SYMBOLIC)


def known_value(number: Any) -> int | float | bool | None:
    """What a symbolic number has turned out to be, or None."""
    node = number.node
    if isinstance(number, torch.SymInt):
        known: int | float | bool | None = node.maybe_as_int()
    else:
        known = node.maybe_as_float() if isinstance(number, torch.SymFloat) else node.maybe_as_bool()
    return known


def is_number_node(node: fx.Node, key: str = "val") -> bool:
    """Whether a node gives a symbolic number; `key` is where the graph keeps values."""
    return is_symbolic(node.meta.get(key))


class NumberNodes:
    """The nodes of the numbers of one graph: known ones, and those made of them.

    `key` is the entry of `meta` in which nodes of the graph keep their value. New nodes go to the graph's present place.
    """

    def __init__(self, graph: fx.Graph, key: str = "val") -> None:
        self._graph = graph
        self._key = key
        self._known: dict[sympy.Expr, fx.Node] = {}
        self._makers: dict[sympy.Expr, Callable[[], fx.Node]] = {}

    def bind(self, number: Any, node: fx.Node) -> None:
        """From now on `node` gives the number."""
        self._known.setdefault(number.node.expr, node)

    def offer(self, number: Any, make: Callable[[], fx.Node]) -> None:
        """Say how a node of a number can be made, should it be needed: `sym_size` of an input."""
        self._makers.setdefault(number.node.expr, make)

    def knows(self, number: Any) -> bool:
        """Whether a node of the number exists or can be made."""
        expr = number.node.expr
        reachable = self._known.keys() | self._makers.keys()
        return expr in reachable or expr.free_symbols <= reachable

    def node_of(self, number: Any) -> fx.Node | int | float | bool:
        """The node of a number, or the number itself where it turned out to be known. KeyError without its symbols."""
        known = known_value(number)
        return self._of(number.node.expr, number) if known is None else known

    def node_of_expr(self, expr: sympy.Basic) -> fx.Node:
        """The node of an expression in symbols of the graph. KeyError without its symbols."""
        return self._of(expr, None)

    def _of(self, expr: sympy.Expr, number: Any) -> fx.Node:
        if expr not in self._known and expr in self._makers:
            self._known[expr] = self._makers.pop(expr)()
        if expr not in self._known:
            self._known[expr] = self._made(expr, number)
        return self._known[expr]

    def _made(self, expr: sympy.Expr, number: Any) -> fx.Node:
        # These import sympy's printers and much of torch's; static graphs do without.
        from torch.utils._sympy.interp import sympy_interp
        from torch.utils._sympy.reference import PythonReferenceAnalysis

        if expr.is_Symbol:
            raise KeyError(f"nothing in the graph tells the number {expr}")
        tracer = fx.proxy.GraphAppendingTracer(self._graph)
        env = {symbol: fx.Proxy(self._of(symbol, None), tracer) for symbol in expr.free_symbols}
        before = set(self._graph.nodes)
        made: fx.Node = sympy_interp(PythonReferenceAnalysis, env, expr).node
        for node in self._graph.nodes:
            if node not in before:
                node.meta[self._key] = number if node is made and number is not None else _value(node, self._key)
        return made


def _value(node: fx.Node, key: str) -> Any:
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda operand: operand.meta[key])
    function: Any = node.target
    return function(*args, **kwargs)


def numbers_of(tensor: torch.Tensor) -> Mapping[tuple[str, int], Any]:
    """The symbolic sizes, strides and offset of a tensor, by ("size", dimension), ("stride", dimension), ("offset", 0)."""
    layout = {("size", dim): size for dim, size in enumerate(tensor.shape)}
    layout |= {("stride", dim): stride for dim, stride in enumerate(tensor.stride())}
    layout["offset", 0] = tensor.storage_offset()
    return {place: number for place, number in layout.items() if is_symbolic(number)}

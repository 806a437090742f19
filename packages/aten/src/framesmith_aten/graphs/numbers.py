"""Symbolic numbers in graphs: what may make one, and the nodes of integer expressions.

See docs/design/frontend/0015-dynamic-shapes.md for who may rely on what.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from framesmith_aten.symbolic import has_symbols, holds, is_symbolic, known_value
from framesmith_aten.torch_adapter import PythonReferenceAnalysis, unstable
from framesmith_guards.needs import of_torch
from framesmith_guards.torch_adapter import OpOverload, aten


def divide(dividend: Any, divisor: Any) -> Any:
    """The quotient as C++ has it of doubles: by 0 it is infinite, or no number, where Python's raises."""
    if is_symbolic(dividend) or is_symbolic(divisor) or divisor != 0:
        return dividend / divisor
    infinite = math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)
    return infinite if dividend == dividend and dividend != 0 else math.nan


_OPERATORS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.neg, operator.pos, operator.abs, operator.lshift, operator.rshift, operator.and_, operator.or_,
    operator.xor, operator.invert, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
)  # fmt: skip
#: Functions of numbers that a number node may call; what they give for Python numbers is what the node is at a call.
FUNCTIONS: Final = frozenset({
    *_OPERATORS,
    *(function for function in vars(math).values() if callable(function)),
    torch.sym_float, torch.sym_int, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sqrt,
    torch.sym_sum, of_torch("torch._sym_log2"),
    divide,
    int, float, bool, round, min, max, pow, divmod,
})  # fmt: skip

_PARTIAL = {operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.lshift, operator.rshift}
#: Those that raise for no numbers of the right types.
TOTAL: Final = frozenset({
    *_OPERATORS, torch.sym_float, torch.sym_ite, torch.sym_max, torch.sym_min,
    torch.sym_not, torch.sym_sum, float, bool, min, max, divide,
}) - _PARTIAL  # fmt: skip

_QUERIES: Final = {
    "size": aten.sym_size.int,
    "stride": aten.sym_stride.int,
    "offset": aten.sym_storage_offset.default,
}
#: Operators that give a number of a tensor's layout.
LAYOUT_QUERIES: Final = frozenset({*_QUERIES.values(), aten.sym_numel.default})


def is_number_node(node: fx.Node, key: str = "val") -> bool:
    """Whether a node gives a symbolic number; `key` is where the graph keeps values."""
    return is_symbolic(node.meta.get(key))


class NumberNodes:
    """The nodes of the numbers of one graph: known ones, and those made of them.

    `key` is the entry of `meta` in which nodes of the graph keep their value. A new node stands right behind the last
    one that it is computed from, before everything that may ask for it: it can be asked for anywhere behind that.
    """

    def __init__(self, graph: fx.Graph, key: str = "val") -> None:
        self._graph = graph
        self._key = key
        self._known: dict[Any, fx.Node] = {}
        self._makers: dict[Any, Callable[[], fx.Node]] = {}

    def bind(self, number: Any, node: fx.Node) -> None:
        """From now on `node` gives the number."""
        self._known.setdefault(number.node.expr, node)

    def offer(self, number: Any, make: Callable[[], fx.Node]) -> None:
        """Say how a node of a number can be made, should it be needed: `sym_size` of an input.

        Also of the symbol as it was before torch took another for it: whether that is so is to be found out. Not of
        what is computed from known ones: that can be asked for before `make` can be called.
        """
        if not self.knows(number):
            self._makers[number.node.expr] = make
        if number.node._expr.is_Symbol:
            self._makers.setdefault(number.node._expr, make)

    def offer_layout(
        self, tensor: torch.Tensor, node: fx.Node | Callable[[], fx.Node], *, guarded: bool = False
    ) -> None:
        """Say that symbols in the layout of `tensor` can be asked of its `node`, or of what gives it.

        `guarded`: whole layouts are compared at every call, as those of the inputs of a frame are.
        """
        for (what, dim), number in numbers_of(tensor).items():
            if self.knows(number) and self.knows_expression(number.node._expr):
                continue
            if guarded or binds(tensor, (what, dim)):
                dims = () if what == "offset" else (dim,)
                self.offer(number, functools.partial(self._query, _QUERIES[what], node, dims, number))

    def rename(self, was: Any, becomes: Any) -> None:
        """A symbol has become another in torch's ShapeEnv."""
        tables: tuple[dict[Any, Any], ...] = (self._known, self._makers)
        for table in tables:
            if was in table:
                table[becomes] = table.pop(was)

    def knows(self, number: Any) -> bool:
        """Whether a node of the number exists or can be made."""
        return self.knows_expression(number.node.expr)

    def knows_expression(self, expr: Any) -> bool:
        """The same of a sympy expression."""
        return self._reaches(expr) or all(map(self._reaches, expr.free_symbols))

    def _reaches(self, expr: Any) -> bool:
        return expr in self._known or expr in self._makers

    def of_expression(self, expr: Any) -> fx.Node:
        """The node of an expression of symbols as they were, whatever else torch has since taken them for."""
        return self._of(expr, None)

    def is_opaque(self, number: Any) -> bool:
        """Whether a number is a symbol, or one that a node gives: nothing is to be computed by its expression."""
        return number.node.expr.is_Symbol or number.node.expr in self._known

    def node_of(self, number: Any) -> fx.Node | int | float | bool:
        """The node of a number, or the number itself where it turned out to be known. KeyError without its symbols."""
        known = known_value(number)
        return self._of(number.node.expr, number) if known is None else known

    def symbol(self, symbol: Any) -> fx.Node | None:
        """The node of a symbol, None where nothing tells it."""
        return self._of(symbol, None) if symbol in self._known or symbol in self._makers else None

    def in_place_of_symbols(self, value: Any) -> Any:
        """The value with nodes in place of the symbolic numbers in it. KeyError as `node_of`."""
        if isinstance(value, (list, tuple)):
            return type(value)([self.in_place_of_symbols(item) for item in value])
        if isinstance(value, dict):
            return {key: self.in_place_of_symbols(item) for key, item in value.items()}
        return self.node_of(value) if is_symbolic(value) else value

    def _of(self, expr: Any, number: Any) -> fx.Node:
        if expr not in self._known and expr in self._makers:
            self._known[expr] = self._makers.pop(expr)()
        if expr not in self._known:
            self._known[expr] = self._made(expr, number)
        return self._known[expr]

    def _made(self, expr: Any, number: Any) -> fx.Node:

        if expr.is_Symbol:
            raise KeyError(f"nothing in the graph tells the number {expr}")
        tracer = _Appending(self._graph)
        nodes = {symbol: self._of(symbol, None) for symbol in sorted(expr.free_symbols, key=str)}
        env = {symbol: fx.Proxy(node, tracer) for symbol, node in nodes.items()}
        with self._graph.inserting_before(insertion_point(max(nodes.values()))):
            made: fx.Node = unstable.sympy_interp(_analysis(), env, expr).node
        for node in tracer.made:
            node.meta[self._key] = number if node is made and number is not None else _value(node, self._key)
        return made

    def _query(
        self, query: OpOverload, of: fx.Node | Callable[[], fx.Node], dims: tuple[int, ...], number: Any
    ) -> fx.Node:
        tensor = of if isinstance(of, fx.Node) else of()
        with self._graph.inserting_before(insertion_point(tensor)):
            node = self._graph.call_function(query, (tensor, *dims))
        node.meta[self._key] = number
        return node


def numbers_in(graph: fx.Graph, key: str = "val") -> NumberNodes:
    """The numbers that the nodes of a graph give, or that can be asked of its tensors."""
    numbers = NumberNodes(graph, key)
    for node in graph.nodes:
        value = node.meta.get(key)
        if is_symbolic(value):
            numbers.bind(value, node)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided and has_symbols(value):
            numbers.offer_layout(value, node)
    return numbers


class _Appending(fx.proxy.GraphAppendingTracer):
    """Appends to a graph and notes what it has appended."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(graph)
        self.made: list[fx.Node] = []

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self.made.append(node)
        return node


@functools.cache
def _analysis() -> Any:
    """How torch takes expressions apart, with what it would compute of proxies at once as calls.

    Those are of torch's own formulas, which divide as C++ does: what the program divides is a node of its own.
    """

    def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tracer = next(arg.tracer for arg in args if isinstance(arg, fx.Proxy))
        return tracer.create_proxy("call_function", function, args, kwargs)

    class Analysis(PythonReferenceAnalysis):
        truediv = int_truediv = staticmethod(lambda x, y: called(divide, x, y))
        eq, ne = staticmethod(operator.eq), staticmethod(operator.ne)
        floor_to_int = staticmethod(lambda x, dtype: called(math.floor, x))
        ceil_to_int = staticmethod(lambda x, dtype: called(math.ceil, x))
        trunc_to_int = staticmethod(lambda x, dtype: called(math.trunc, x))
        round_to_int = staticmethod(lambda x, dtype: called(round, x))
        round_decimal = staticmethod(lambda x, digits: called(round, x, digits))
        floor = staticmethod(lambda x: called(float, called(math.floor, x)))
        ceil = staticmethod(lambda x: called(float, called(math.ceil, x)))
        abs = staticmethod(lambda x: called(operator.abs, x))

        # torch 2.11 makes these expressions of booleans and has no handlers for them
        expr_cond_pair = staticmethod(lambda expr, condition: (expr, condition))

        @staticmethod
        def piecewise(*pairs: tuple[Any, Any]) -> Any:
            """The first expression whose condition holds; that of the last pair is always true."""
            *others, (chosen, _) = pairs
            for expr, condition in reversed(others):
                chosen = called(torch.sym_ite, condition, expr, chosen)
            return chosen

        @staticmethod
        def sym_sum(terms: Sequence[Any]) -> Any:
            """One node, however many terms: one for each partial sum would hold all expressions on the way."""
            if len(terms) == 2:
                return operator.add(*terms)
            tracer = next(term.tracer for term in terms if isinstance(term, fx.Proxy))
            return tracer.create_proxy("call_function", torch.sym_sum, (tuple(terms),), {})

    return Analysis


def insertion_point(node: fx.Node) -> fx.Node:
    """The node before which to put what is computed from `node`: behind it, and behind the inputs if it is one."""
    following = node.next
    while node.op == "placeholder" and following.op == "placeholder":
        following = following.next
    return following


def _value(node: fx.Node, key: str) -> Any:
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda operand: operand.meta[key])
    function: Any = node.target
    return function(*(_alike(*args) if function is torch.sym_ite else args), **kwargs)


def _alike(condition: Any, first: Any, second: Any) -> tuple[Any, Any, Any]:
    """The operands of torch.sym_ite, which takes none that is known beside one that is not."""
    of = next(filter(is_symbolic, (first, second)), None)
    if of is None:
        return condition, first, second
    wrap = {torch.SymInt: "wrap_int", torch.SymFloat: "wrap_float", torch.SymBool: "wrap_bool"}[type(of)]
    return condition, *(x if is_symbolic(x) else type(of)(getattr(of.node, wrap)(x)) for x in (first, second))


def numbers_of(tensor: torch.Tensor) -> Mapping[tuple[str, int], Any]:
    """What is symbolic of a strided tensor, by ("size", dimension), ("stride", dimension) and ("offset", 0)."""
    layout: dict[tuple[str, int], Any] = {("size", dim): size for dim, size in enumerate(tensor.shape)}
    layout |= {("stride", dim): stride for dim, stride in enumerate(tensor.stride())}
    layout["offset", 0] = tensor.storage_offset()
    return {place: number for place, number in layout.items() if is_symbolic(number)}


def binds(tensor: torch.Tensor, place: tuple[str, int]) -> bool:
    """Whether the tensor has, at every run, that number of `numbers_of` there.

    Not a stride of a dimension that may have one element alone: gradients, and results of operators, have any there.
    """
    what, dim = place
    return what != "stride" or holds(tensor.shape[dim] >= 2)

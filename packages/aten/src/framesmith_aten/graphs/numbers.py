"""The nodes of symbolic scalars (sizes, floats, conditions) in graphs, and functions that may compute one.

See docs/design/frontend/0015-dynamic-shapes.md for the assumptions each stage may make.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final, Literal

import torch
from torch import fx

from framesmith_aten.symbolic import has_symbols, holds, is_symbolic, known_value
from framesmith_aten.torch_adapter import PythonReferenceAnalysis, unstable
from framesmith_guards.needs import of_torch
from framesmith_guards.torch_adapter import OpOverload, aten


def divide(dividend: Any, divisor: Any) -> Any:
    """Return the quotient of two doubles in C++: infinity or NaN for a divisor of 0, where Python raises."""
    if is_symbolic(dividend) or is_symbolic(divisor) or divisor != 0:
        return dividend / divisor
    infinite = math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)
    return infinite if dividend == dividend and dividend != 0 else math.nan


_OPERATORS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.neg, operator.pos, operator.abs, operator.lshift, operator.rshift, operator.and_, operator.or_,
    operator.xor, operator.invert, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
)  # fmt: skip
#: Functions of scalars that a scalar node may call; on Python numbers they return the node's value at a call.
FUNCTIONS: Final = frozenset({
    *_OPERATORS,
    *(function for function in vars(math).values() if callable(function)),
    torch.sym_float, torch.sym_int, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sqrt,
    torch.sym_sum, of_torch("torch._sym_log2"),
    divide,
    int, float, bool, round, min, max, pow, divmod,
})  # fmt: skip

_PARTIAL = {operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.lshift, operator.rshift}
#: Functions that raise for no numbers of the right types.
TOTAL: Final = frozenset({
    *_OPERATORS, torch.sym_float, torch.sym_ite, torch.sym_max, torch.sym_min,
    torch.sym_not, torch.sym_sum, float, bool, min, max, divide,
}) - _PARTIAL  # fmt: skip

#: The origin of a symbolic scalar: a value that is one, or an entry of a tensor's layout.
ScalarOrigin = Literal["number", "size", "stride", "offset"]
_QUERIES: Final = {
    "size": aten.sym_size.int,
    "stride": aten.sym_stride.int,
    "offset": aten.sym_storage_offset.default,
}
#: Operators that return a scalar of a tensor's layout.
LAYOUT_QUERIES: Final = frozenset({*_QUERIES.values(), aten.sym_numel.default})


def is_number_node(node: fx.Node, key: str = "val") -> bool:
    """Whether the node's value is a symbolic scalar; `key` is the entry of `meta` with values."""
    return is_symbolic(node.meta.get(key))


class ScalarNodes:
    """The nodes of one graph's symbolic scalars: those it has, and those computed of them on demand.

    `key` is the entry of `meta` with values. A new node stands right behind the last of its operands, so that every
    later node can use it.
    """

    def __init__(self, graph: fx.Graph, key: str = "val") -> None:
        self._graph = graph
        self._key = key
        self._known: dict[Any, fx.Node] = {}
        self._makers: dict[Any, Callable[[], fx.Node]] = {}
        #: Returns the node of a symbol that nothing in the graph binds (in a body: an operand); raises KeyError.
        self.outside: Callable[[Any], fx.Node] = _unbound

    def bind(self, number: Any, node: fx.Node) -> None:
        """Make `node` the one that computes the scalar."""
        self._known.setdefault(number.node.expr, node)

    def offer(self, number: Any, make: Callable[[], fx.Node]) -> None:
        """Note how to make the node of a scalar (`sym_size` of an input), should one be needed.

        Also of the original symbol, which torch may have replaced by another since: that equality is still to be
        checked. Not of expressions of known scalars, which may be needed before `make` can be called.
        """
        if not self.knows(number):
            self._makers[number.node.expr] = make
        if number.node._expr.is_Symbol:
            self._makers.setdefault(number.node._expr, make)

    def offer_layout(
        self, tensor: torch.Tensor, node: fx.Node | Callable[[], fx.Node], *, guarded: bool = False
    ) -> None:
        """Note that symbols in the layout of `tensor` can be read off its `node`, or off the node that a function
        makes.

        `guarded`: guards compare all of the layout at every call, as for the inputs of a frame.
        """
        for (what, dim), number in numbers_of(tensor).items():
            if self.knows(number) and self.knows_expression(number.node._expr):
                continue
            if guarded or binds(tensor, (what, dim)):
                dims = () if what == "offset" else (dim,)
                self.offer(number, functools.partial(self._query, _QUERIES[what], node, dims, number))

    def rename(self, was: Any, becomes: Any) -> None:
        """Replace a symbol that has become another in torch's ShapeEnv."""
        tables: tuple[dict[Any, Any], ...] = (self._known, self._makers)
        for table in tables:
            if was in table:
                table[becomes] = table.pop(was)

    def forget(self, nodes: Container[fx.Node]) -> None:
        """Forget the scalars that these nodes compute, which have left the graph."""
        self._known = {expr: node for expr, node in self._known.items() if node not in nodes}

    def knows(self, number: Any) -> bool:
        """Whether a node of the scalar exists or can be made."""
        return self.knows_expression(number.node.expr)

    def knows_expression(self, expr: Any) -> bool:
        """`knows` of a sympy expression."""
        return self._reaches(expr) or all(map(self._reaches, expr.free_symbols))

    def _reaches(self, expr: Any) -> bool:
        return expr in self._known or expr in self._makers

    def of_expression(self, expr: Any) -> fx.Node:
        """Return the node of an expression of the original symbols, whatever torch has replaced them by since."""
        return self._of(expr, None)

    def is_opaque(self, number: Any) -> bool:
        """Whether the scalar is a symbol or has a node: not to be computed by its expression."""
        return number.node.expr.is_Symbol or number.node.expr in self._known

    def node_of(self, number: Any) -> fx.Node | int | float | bool:
        """Return the scalar's node, or its value where that is known by now. KeyError where a symbol has no node."""
        known = known_value(number)
        return self._of(number.node.expr, number) if known is None else known

    def symbol(self, symbol: Any) -> fx.Node | None:
        """Return the node of a symbol, or None."""
        return self._of(symbol, None) if symbol in self._known or symbol in self._makers else None

    def in_place_of_symbols(self, value: Any) -> Any:
        """Return the value with nodes in place of symbolic scalars. KeyError as `node_of`."""
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
            return self.outside(expr)
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


def _unbound(symbol: Any) -> fx.Node:
    raise KeyError(f"nothing in the graph binds the symbol {symbol}")


def numbers_in(graph: fx.Graph, key: str = "val") -> ScalarNodes:
    """Return the scalars that nodes of the graph compute, or that can be read off its tensors."""
    numbers = ScalarNodes(graph, key)
    for node in graph.nodes:
        value = node.meta.get(key)
        if is_symbolic(value):
            numbers.bind(value, node)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided and has_symbols(value):
            numbers.offer_layout(value, node)
    return numbers


class _Appending(fx.proxy.GraphAppendingTracer):
    """Appends to a graph and records the new nodes."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(graph)
        self.made: list[fx.Node] = []

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self.made.append(node)
        return node


@functools.cache
def _analysis() -> Any:
    """Return torch's interpreter of sympy expressions, with calls where it would compute on proxies at once.

    Its formulas divide as C++ does; a division of the program's own is a node of its own.
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
            """Return the first expression whose condition holds; the last condition is always true."""
            *others, (chosen, _) = pairs
            for expr, condition in reversed(others):
                chosen = called(torch.sym_ite, condition, expr, chosen)
            return chosen

        @staticmethod
        def sym_sum(terms: Sequence[Any]) -> Any:
            """Return one node for any number of terms: partial sums would hold every expression on the way."""
            if len(terms) == 2:
                return operator.add(*terms)
            tracer = next(term.tracer for term in terms if isinstance(term, fx.Proxy))
            return tracer.create_proxy("call_function", torch.sym_sum, (tuple(terms),), {})

    return Analysis


def insertion_point(node: fx.Node) -> fx.Node:
    """Return the node to insert before so that new nodes follow `node`, and follow all inputs if it is one."""
    following = node.next
    while node.op == "placeholder" and following.op == "placeholder":
        following = following.next
    return following


def _value(node: fx.Node, key: str) -> Any:
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda operand: operand.meta[key])
    function: Any = node.target
    return function(*(_of_one_type(*args) if function is torch.sym_ite else args), **kwargs)


def _of_one_type(condition: Any, first: Any, second: Any) -> tuple[Any, Any, Any]:
    """Return operands of torch.sym_ite of one type: it takes no known number beside a symbolic one."""
    of = next(filter(is_symbolic, (first, second)), None)
    if of is None:
        return condition, first, second
    wrap = {torch.SymInt: "wrap_int", torch.SymFloat: "wrap_float", torch.SymBool: "wrap_bool"}[type(of)]
    return condition, *(x if is_symbolic(x) else type(of)(getattr(of.node, wrap)(x)) for x in (first, second))


def numbers_of(tensor: torch.Tensor) -> Mapping[tuple[ScalarOrigin, int], Any]:
    """Return the symbolic scalars of a strided tensor, by ("size", dim), ("stride", dim) and ("offset", 0)."""
    layout: dict[tuple[ScalarOrigin, int], Any] = {("size", dim): size for dim, size in enumerate(tensor.shape)}
    for dim, stride in enumerate(tensor.stride()):
        layout["stride", dim] = stride
    layout["offset", 0] = tensor.storage_offset()
    return {entry: number for entry, number in layout.items() if is_symbolic(number)}


def binds(tensor: torch.Tensor, entry: tuple[ScalarOrigin, int]) -> bool:
    """Whether the tensor has this scalar of `numbers_of` at every run.

    Not a stride of a dimension that may have one element: gradients and results of operators have any there.
    """
    what, dim = entry
    return what != "stride" or holds(tensor.shape[dim] >= 2)

"""Symbolic scalars in the trace: calls of functions of numbers, and assumptions about unbacked ones."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aten.assumptions import assumed, is_assertion
from framesmith_aten.checks.limits import arithmetic_numbers
from framesmith_aten.fakes.symbols import condition_asked_by
from framesmith_aten.graphs.nodes import value_of
from framesmith_aten.graphs.numbers import FUNCTIONS
from framesmith_aten.meta import EXAMPLE
from framesmith_aten.operators import op_name
from framesmith_aten.symbolic import holds_assuming, is_assumed, is_symbolic, is_the_same, is_unbacked, known_value
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.torch_adapter import OpOverload

#: Conditions on unbacked numbers are assumed to hold if they hold for this number.
MANY = 1 << 16

#: Operators that broadcast nothing: a size that they assume equal raises where it is 1.
OF_ONE_LENGTH = frozenset({"narrow", "narrow_copy", "slice_scatter", "split", "split_with_sizes"})


def call(tracer: GraphTracer, node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a call of a function of numbers; a float result gets a node of its own."""
    function: Any = node.target
    known = EXAMPLE.get(node)
    if is_symbolic(known) and (value := known_value(known)) is not None:
        return value  # the capture relies on it
    out = known if is_symbolic(known) else function(*args, **kwargs)
    if not is_symbolic(out):
        return out
    if isinstance(out, torch.SymFloat) and not tracer.numbers.is_opaque(out):
        out = out.node.shape_env.create_unbacked_symfloat()  # float arithmetic keeps the program's order: design 0015
    tracer.call_number(function, args, dict(kwargs), out)
    return out


def as_known(value: Any) -> Any:
    """Return the constant that a symbol is known to be; other values as they are."""
    known = known_value(value) if is_symbolic(value) else None
    return value if known is None else known


def computed_with(graph: fx.Graph) -> list[Any]:
    """Return the symbols with known values that the operators of a traced graph compute with."""
    met: list[fx.Node] = []
    for node in graph.nodes:
        if isinstance(node.target, OpOverload):
            operands = {id(one.meta["val"]): one for one in node.all_input_nodes}
            numbers = arithmetic_numbers(node.target, value_of(node.args), value_of(node.kwargs))
            met.extend(operands[id(number)] for number, _ in numbers)
    for node in met:  # grows by the operands of numbers
        met.extend(one for one in node.all_input_nodes if is_symbolic(one.meta["val"]) and one not in met)
    found = [node.meta["val"] for node in dict.fromkeys(met)]
    # `_expr` does not apply replacements found since.
    return [number for number in found if number.node._expr.is_Symbol and number.node.has_hint()]


def specialise(numbers: Sequence[Any], asked: set[Any]) -> bool:
    """Specialise numbers to their present values by guards; return whether any is not among those `asked`.

    A number that was specialised while the graph was traced was a symbol before.
    """
    new = [number for number in numbers if number.node._expr not in asked]
    for number in new:
        number.node.pytype(number)
        asked.add(number.node._expr)
    return bool(new)


def assume_usual(error: Any, fake_mode: Any, captured: Collection[Any]) -> bool:
    """Assume the usual case of the condition on unbacked numbers that torch asked for; return whether that is new.

    Torch's formulas branch for a factor of one, for empty tensors and for a single row. Usual are other factors and
    many rows: the answer for a large number. A call checks it: see `Facts`. `captured`: the symbols of the captured
    graph; others are created again in each trace, and their assumptions are lost.
    """
    condition = condition_asked_by(error)
    env = fake_mode.shape_env
    if env is None or condition is None:
        return False
    facts = [_usual(one, env) for one in _relations(condition) if _unbacked_in(one)]
    if any(fact is None or not all(one in captured for one in _unbacked_in(fact)) for fact in facts):
        return False
    before = env.num_deferred_runtime_asserts
    for fact in sorted(facts, key=str):
        env.guard_or_defer_runtime_assert(fact, assumed(_said(fact)))
    return bool(env.num_deferred_runtime_asserts > before)


def _relations(condition: Any) -> Iterator[Any]:
    if condition.is_Relational:
        yield condition
        return
    for part in condition.args:
        yield from _relations(part)


def _usual(condition: Any, env: Any) -> Any:
    """Return the usual one of the condition and its negation; None for an equality, which would replace the symbol."""
    usual = holds_assuming(condition, env, MANY)
    fact = None if usual is None else condition if usual else ~condition
    return None if fact is None or fact.rel_op == "==" else fact


def _unbacked_in(expr: Any) -> set[Any]:
    return {
        one
        for one in expr.free_symbols
        if unstable.symbol_is_type(one, (unstable.SymT.UNBACKED_FLOAT, unstable.SymT.UNBACKED_INT))
    }


def _said(fact: Any) -> str:
    if fact.rel_op == "!=" and fact.lhs.is_Symbol and fact.rhs.is_number:
        number = float(fact.rhs) if not fact.rhs.is_integer else fact.rhs
        return f"{fact.lhs}, an unbacked number, is not {number}, for which torch has another derivative"
    return f"{fact.lhs} {fact.rel_op} {fact.rhs}, of unbacked numbers: where it is not so, torch has another derivative"


@contextmanager
def refusing_new_assumptions(env: Any) -> Iterator[None]:
    """Raise AotUnsupported where the backward pass replaces an unbacked symbol of the forward pass.

    The forward pass would be compiled with the replacement, which nothing checks there.
    """
    if env is None:
        yield
        return

    symbols, known = set(env.var_to_range), set(env.replacements)
    yield
    for symbol in symbols & (set(env.replacements) - known):
        if unstable.symbol_is_type(symbol, unstable.SymT.UNBACKED_INT):
            why = f"its gradients assume that {symbol} is {env.replacements[symbol]}"
            raise AotUnsupported("data-dependent", "an unbacked size", why, "torch._check it")


def note_result(tracer: GraphTracer, node: fx.Node, result: Any) -> None:
    """Rename unbacked symbols that a call has created to those of the captured graph."""
    if not node.meta or (known := EXAMPLE.get(node)) is None:
        return
    for was, becomes in is_the_same(result, known):
        tracer.numbers.rename(was, becomes)


class Facts:
    """Assumptions about numbers that a call checks: torch's deferred runtime asserts."""

    def __init__(self, tracer: GraphTracer, graph: fx.Graph) -> None:
        self._tracer = tracer
        self._checked: set[Any] = set()
        self._seen = 0
        self._messages: dict[Any, str] = {}
        self._asserted = {
            node.args[0]: str(node.args[1])
            for node in reversed(graph.nodes)
            if is_assertion(node) and isinstance(node.args[0], fx.Node)
        }
        if tracer.fake_mode.shape_env is not None:
            for node in graph.nodes:
                if node.target is unstable.check:
                    self.note_check(node, fx.node.map_arg(node.args, lambda operand: EXAMPLE.get(operand)))

    def note_check(self, node: fx.Node, args: Sequence[Any]) -> None:
        """Note the message of a call of `torch._check`."""
        if node.target is unstable.check and isinstance(args[0], torch.SymBool):
            message = args[1] if len(args) > 1 else "Expected cond to be True, but got False"
            self._say(args[0], str(message() if callable(message) else message))

    def note_asserted(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> None:
        """Note that `node`, if it is one, computes a condition that the graph asserts further on.

        The capture relies on it; the check comes before the first operator that may rely on it.
        """
        if node in self._asserted:
            condition = _retrace(node, env)
            if not isinstance(condition, torch.SymBool) or not condition.node._expr.free_symbols:
                return
            if known_value(condition) is None:
                self._say(condition, self._asserted[node])
                unstable.check(condition)
            # Torch may know it from capture, and would not check it.
            self._check_once(condition.node._expr, self._asserted[node])

    def has_checked(self, condition: Any) -> bool:
        """Whether the condition is constant, or the graph checks it already."""
        return condition is True or (isinstance(condition, torch.SymBool) and condition.node._expr in self._checked)

    def _check_once(self, condition: Any, message: str) -> None:
        if condition not in self._checked and self._tracer.numbers.knows_expression(condition):
            self._checked.add(condition)
            self._tracer.check_number(condition, message)

    def _say(self, condition: torch.SymBool, message: str) -> None:

        self._messages[unstable.canonicalize_bool_expr(condition.node._expr)] = message

    def check(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        """Record the checks of the assumptions of the call `node`. Raises AotUnsupported.

        `values`: those of all nodes so far.
        """
        env = self._tracer.fake_mode.shape_env
        if env is None or self._seen == env.num_deferred_runtime_asserts:
            return
        self._seen = env.num_deferred_runtime_asserts
        for relied in [one for some in env.deferred_runtime_asserts.values() for one in some]:
            if not self._tracer.numbers.knows_expression(relied.expr):
                self._seen = 0  # checked at a later call
                continue
            message = self._messages.get(relied.expr)
            unsaid = message is None and relied.expr not in self._checked
            exact = op_name(node.target) in OF_ONE_LENGTH or _writes_to_every_unbacked_operand(node, values)
            if unsaid and _may_broadcast(relied.expr) and not exact:
                why = f"it is assumed that {relied.expr}, but one element would do as well"
                raise AotUnsupported("data-dependent", "an unbacked size", why, "torch._check it")
            self._check_once(relied.expr, message or assumed(f"{relied.msg}: {relied.expr}"))


def _retrace(node: Any, env: Mapping[fx.Node, Any]) -> Any:
    """Return the value of a call of numbers for the numbers of this trace."""
    if isinstance(node, (tuple, list)):  # the terms of `torch.sym_sum`
        return [_retrace(one, env) for one in node]
    if not isinstance(node, fx.Node) or node.target not in FUNCTIONS:
        return env[node] if isinstance(node, fx.Node) else node
    function: Any = node.target
    return function(*[_retrace(one, env) for one in node.args])


def _writes_to_every_unbacked_operand(node: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    """Whether the call writes to its only operand with an unbacked length: the written operand is not broadcast."""
    name = op_name(node.target)
    if node.target is not operator.setitem and not (name.endswith("_") and not name.endswith("__")):
        return False
    written, *others = node.all_input_nodes
    sizes = [size for one in others if isinstance(values[one], torch.Tensor) for size in values[one].shape]
    return written is node.args[0] and not any(is_unbacked(size) or is_assumed(size) for size in sizes)


def _may_broadcast(expr: Any) -> bool:
    """Whether a condition equates sizes: torch's rules assert that also of sizes that eager mode broadcasts."""
    return expr.is_Relational and expr.rel_op == "==" and all(side.is_Symbol or side.is_number for side in expr.args)

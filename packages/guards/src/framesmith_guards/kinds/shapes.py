"""Relations between symbolic sizes: sympy expressions whose symbols are sources of numbers.

One row per operator gives its Python text, which is what it means.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Final

from framesmith_guards.errors import GuardError
from framesmith_guards.generated import generated_namespace
from framesmith_guards.sources import Source

if TYPE_CHECKING:
    import sympy

Number = Any
"""An int, a float or, multiplied by a rational coefficient, a Fraction."""

Text = Callable[[list[str]], str]
"""Return an operator of a shape expression as Python text, from its operands' texts."""


def _infix(symbol: str) -> Text:
    return lambda args: f"({f' {symbol} '.join(args)})"


def _power(args: list[str]) -> str:
    return f"(({args[0]}) ** {args[1]})"  # `-2 ** n` is -(2**n)


def _call(name: str) -> Text:
    return lambda args: f"{name}({', '.join(args)})"


def _template(template: str) -> Text:
    return lambda args: template.format(*args)


def _piecewise(*branches: tuple[Number, bool]) -> Number:
    for value, condition in branches:
        if condition:
            return value
    raise ValueError("no branch of the piecewise expression applies")


OPERATORS: Final[dict[str, Text]] = {
    "Add": _infix("+"),
    "Mul": _infix("*"),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _power,
    "FloorDiv": _infix("//"),
    "CleanDiv": _infix("//"),
    "Mod": _infix("%"),
    "PythonMod": _infix("%"),
    "IntTrueDiv": _infix("/"),
    "FloatTrueDiv": _infix("/"),
    "ModularIndexing": _template("(({0} // {1}) % {2})"),
    "CeilDiv": _template("(-(-{0} // {1}))"),
    "CeilToInt": _call("ceil"),
    "ceiling": _call("ceil"),
    "FloorToInt": _call("floor"),
    "floor": _call("floor"),
    "TruncToInt": _call("int"),
    "TruncToFloat": _template("float(int({0}))"),
    "ToFloat": _call("float"),
    "RoundToInt": _call("round"),
    "Identity": _template("{0}"),
    "Abs": _call("abs"),
    "Max": _call("max"),
    "Min": _call("min"),
    "LShift": _infix("<<"),
    "RShift": _infix(">>"),
    "BitwiseFn_bitwise_and": _infix("&"),
    "BitwiseFn_bitwise_or": _infix("|"),
    "Equality": _infix("=="),
    "Unequality": _infix("!="),
    "StrictLessThan": _infix("<"),
    "LessThan": _infix("<="),
    "StrictGreaterThan": _infix(">"),
    "GreaterThan": _infix(">="),
    "And": _infix("and"),
    "Or": _infix("or"),
    "Not": _template("(not {0})"),
    "Where": _template("({1} if {0} else {2})"),
    "ExprCondPair": _template("({0}, {1})"),
    "Piecewise": _call("piecewise"),
}

_FLOAT_OPERATORS: Final = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%"
}  # fmt: skip
#: Functions of numbers that are opaque to sympy, by name: computed in the program's order.
EXACT: Final[dict[str, Callable[..., Any]]] = {
    **{f"exact_{name}": getattr(operator, name) for name in (*_FLOAT_OPERATORS, "pow", "neg", "abs")},
    **{f"math_{name}": function for name, function in vars(math).items() if isinstance(function, BuiltinFunctionType)},
    "exact_int": int,
    "exact_float": float,
    "exact_round": round,
}
#: Result types (int or float) for unbacked operands, where they are known.
_GIVES: Final[dict[str, type]] = {
    **dict.fromkeys(("exact_int", "math_floor", "math_ceil", "math_trunc"), int),
    **{f"exact_{name}": float for name in ("truediv", "float")},
    **{f"math_{name}": float for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "fabs")},
}
#: Functions that return a float where an operand is one, else an int.
_GIVE_WHAT_THEY_TAKE: Final = frozenset({f"exact_{name}" for name in ("add", "sub", "mul", "floordiv", "mod", "neg")})
#: Functions that raise for no value of a symbol and return one type; other calls are guarded.
NEVER_RAISE: Final = frozenset({
    *(f"exact_{name}" for name in ("add", "sub", "mul", "neg", "abs", "float")),
    *(f"math_{name}" for name in ("fabs", "atan", "atan2", "tanh", "asinh", "copysign", "isnan", "isinf", "isfinite")),
})  # fmt: skip


def type_given(name: str, operands: Collection[type]) -> type | None:
    """Return the result type of a function of `EXACT` for operands of these types; None where it depends on values."""
    if name in _GIVE_WHAT_THEY_TAKE:
        return float if float in operands else int
    return _GIVES.get(name)


#: By type, the condition that a call returns a number of that type for graphs, and does not raise.
_GIVING: Final[dict[type, tuple[str, Callable[[Any], bool]]]] = {
    int: ("gives_int", lambda value: type(value) is int and -(2**63) <= value < 2**63),
    float: ("gives_float", lambda value: type(value) is float),
}
OPERATORS.update({name: _call(name) for name, _ in _GIVING.values()})
OPERATORS.update({
    name: _infix(_FLOAT_OPERATORS[name[6:]]) if name[6:] in _FLOAT_OPERATORS else _call(name) for name in EXACT
})  # fmt: skip


def call_expr(name: str, operands: Sequence[sympy.Basic]) -> sympy.Basic:
    """Return a call of a function of `EXACT` as an expression that sympy does not simplify."""
    import sympy

    if all(isinstance(operand, sympy.Expr) for operand in operands):
        return sympy.Function(name)(*operands)
    return sympy.Function(name, real=True)(*operands)  # of a condition, sympy doubts that it is a number


def gives(call: sympy.Basic, kind: type) -> sympy.Basic:
    """Return the condition that a call of a function of `EXACT` returns an int, or a float: powers return either."""
    import sympy

    return sympy.Function(_GIVING[kind][0])(call)


HELPERS: Final[dict[str, object]] = {
    **generated_namespace("framesmith_guards"),
    **EXACT,
    **dict(_GIVING.values()),
    "ceil": math.ceil,
    "floor": math.floor,
    "Fraction": Fraction,
    "inf": math.inf,
    "piecewise": _piecewise,
}
"""The functions that the printed text may call besides builtins."""


def _operator(expr: sympy.Basic) -> Text:
    """Return the row of an expression's head, found along its class's bases. GuardError if there is none."""
    for cls in type(expr).__mro__:
        row = OPERATORS.get(cls.__name__)
        if row is not None:
            return row
    raise GuardError(f"no shape operator {type(expr).__name__} (in {expr}); known are {', '.join(OPERATORS)}")


def _constant(expr: sympy.Basic) -> Number:
    """Return the value of an expression without symbols or operands; None if it has some."""
    import sympy  # here and below: a caller with an expression has imported it, and it is slow to import

    if expr is sympy.true or expr is sympy.false:
        return bool(expr)
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Rational):
        return Fraction(int(expr.p), int(expr.q))
    if isinstance(expr, sympy.Float):
        return float(expr)
    name = type(expr).__name__
    if name in ("IntInfinity", "Infinity"):
        return math.inf
    if name in ("NegativeIntInfinity", "NegativeInfinity"):
        return -math.inf
    return None


def text(expr: sympy.Basic, names: Mapping[str, str]) -> str:
    """Return Python text of `expr`, with `names` for its symbols."""
    import sympy

    if isinstance(expr, sympy.Symbol):
        return names[expr.name]
    value = _constant(expr)
    if value is not None:
        return repr(value) if value != -math.inf else "(-inf)"
    return _operator(expr)([text(arg, names) for arg in expr.args])


@dataclass(frozen=True)
class ShapeExpr:
    """A condition on numbers: a boolean sympy expression, and the source of each of its symbols, in order."""

    expr: sympy.Basic
    symbols: tuple[tuple[str, Source], ...]

    def __post_init__(self) -> None:
        known = {name for name, _ in self.symbols}
        for symbol in self.expr.free_symbols:
            if symbol.name not in known:
                raise GuardError(f"no source for the symbol {symbol} of {self.expr}; sources for {sorted(known)}")
        text(self.expr, {name: name for name in known})

    @classmethod
    def of(cls, expr: sympy.Basic, sources: Mapping[Any, Source]) -> ShapeExpr:
        """Return `expr` with the sources of the symbols that it uses, from a mapping by symbol or by name."""
        found = {symbol.name: sources.get(symbol.name, sources.get(symbol)) for symbol in expr.free_symbols}
        return cls(expr, tuple((name, source) for name, source in sorted(found.items()) if source is not None))

    @classmethod
    def comparing(cls, first: Source, second: Source, *, equal: bool) -> ShapeExpr:
        """Return the condition that two integers are equal, or that they differ."""
        import sympy

        numbers = sympy.symbols("first second", integer=True)
        return cls((sympy.Eq if equal else sympy.Ne)(*numbers), (("first", first), ("second", second)))

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(source for _, source in self.symbols)

    def text(self, operands: tuple[str, ...]) -> str:
        """Return Python text of the condition, given the texts of the sources."""
        return text(self.expr, dict(zip((name for name, _ in self.symbols), operands, strict=True)))

    def value(self, *numbers: Number) -> Number:
        """Return the expression's value for the sources' values."""
        return self._function(*numbers)

    def holds(self, *numbers: Number) -> bool:
        return bool(self._function(*numbers))

    @cached_property
    def _function(self) -> Callable[..., Number]:
        names = tuple(f"n{at}" for at in range(len(self.symbols)))
        made: Callable[..., Number] = eval(f"lambda {', '.join(names)}: {self.text(names)}", dict(HELPERS))
        return made

    def __str__(self) -> str:
        return text(self.expr, {name: source.name for name, source in self.symbols})

"""Shape conditions as JSON: the operator's name and its operands; symbols and numbers tagged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sympy

from framesmith_guards.errors import GuardError
from framesmith_guards.kinds.shapes import OPERATORS
from framesmith_guards.torch_adapter import unstable

_RELATIONS: Final = (
    "Equality",
    "Unequality",
    "StrictLessThan",
    "LessThan",
    "StrictGreaterThan",
    "GreaterThan",
)
_SYMPY: Final = (*_RELATIONS, "Add", "Mul", "Pow", "Mod", "Abs", "And", "Or", "Not", "ceiling", "floor", "Piecewise")

CONSTRUCTORS: Final[dict[str, Callable[..., Any]]] = {
    **{name: getattr(unstable.sympy_functions, name) for name in OPERATORS if hasattr(unstable.sympy_functions, name)},
    **{name: getattr(sympy, name) for name in _SYMPY},
    "ExprCondPair": lambda value, condition: (value, condition),
}
"""The constructor of each operator's expressions; torch's where both have one of a name, except these."""


def encode_expr(expr: sympy.Basic) -> Any:
    """Return an expression as JSON. GuardError for an operator without a row."""
    if isinstance(expr, sympy.Symbol):
        return ["symbol", expr.name]
    if expr is sympy.true or expr is sympy.false:
        return bool(expr)
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Rational):
        return ["rational", int(expr.p), int(expr.q)]
    if isinstance(expr, sympy.Float):
        return ["float", float(expr).hex()]
    name = next((cls.__name__ for cls in type(expr).__mro__ if cls.__name__ in CONSTRUCTORS), None)
    if name is None:
        raise GuardError(f"the shape operator {type(expr).__name__} cannot travel")
    return [name, *map(encode_expr, expr.args)]


def decode_expr(value: Any) -> Any:
    """Return the expression that `encode_expr` wrote; symbols are integers."""
    if type(value) is bool:
        return sympy.true if value else sympy.false
    if type(value) is int:
        return sympy.Integer(value)
    if type(value) is not list or not value:
        raise GuardError(f"no portable expression: {str(value)[:80]}")
    tag, *parts = value
    if tag == "symbol":
        return sympy.Symbol(str(parts[0]), integer=True)
    if tag == "rational":
        return sympy.Rational(int(parts[0]), int(parts[1]))
    if tag == "float":
        return sympy.Float(float.fromhex(parts[0]))
    if tag not in CONSTRUCTORS:
        raise GuardError(f"no shape operator {tag!r}")
    options = {"evaluate": False} if tag in _RELATIONS else {}
    return CONSTRUCTORS[tag](*map(decode_expr, parts), **options)

"""SHAPE conditions as native integer programs: postfix steps over int64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from framesmith_guards.kinds.shapes import ShapeExpr

if TYPE_CHECKING:
    import sympy

Step = tuple[int, int, int, int]
"""(operator, register, property, value)."""

_ALIASES: Final = {"CleanDiv": "FloorDiv", "PythonMod": "Mod"}
_VARIADIC: Final = frozenset({"Add", "Mul", "Max", "Min", "And", "Or"})


class NotInteger(Exception):
    """The condition needs an operation that the integer program does not have."""


def steps_of(expr: sympy.Basic, operand: Callable[[str], Step], operators: Mapping[str, int]) -> list[Step]:
    """Return the postfix program of `expr`, with `operand(symbol)` for its symbols. NotInteger if it has none."""
    import sympy

    if isinstance(expr, sympy.Symbol):
        return [operand(expr.name)]
    if expr is sympy.true or expr is sympy.false:
        return [(operators["CONSTANT"], 0, 0, int(bool(expr)))]
    if isinstance(expr, sympy.Integer):
        if not -(2**63) <= int(expr) < 2**63:
            raise NotInteger(str(expr))
        return [(operators["CONSTANT"], 0, 0, int(expr))]
    names = [cls.__name__ for cls in type(expr).__mro__]
    name = next((n for n in (_ALIASES.get(n, n) for n in names) if n in operators), None)
    if name is None or not expr.args:
        raise NotInteger(type(expr).__name__)
    programs = [steps_of(arg, operand, operators) for arg in expr.args]
    step = (operators[name], 0, 0, 0)
    if name not in _VARIADIC:
        return [step for program in programs for step in program] + [step]
    joined = list(programs[0])
    for program in programs[1:]:
        joined += [*program, step]
    return joined


def slow_check(condition: ShapeExpr, order: tuple[str, ...], read: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Return the condition by its Python text, over the values of the program's operands in their order."""

    def check(values: list[Any]) -> bool:
        numbers = {name: read[name](value) for name, value in zip(order, values, strict=True)}
        return condition.holds(*(numbers[name] for name, _ in condition.symbols))

    return check

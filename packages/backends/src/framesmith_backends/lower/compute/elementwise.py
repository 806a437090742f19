"""Rules for operators that apply a formula, or a core operation, to the elements of operands that broadcast."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from framesmith_backends.ir.dtypes import compute_type
from framesmith_backends.ir.expr import Expr, Op
from framesmith_backends.ir.ops import OPS
from framesmith_backends.lower.registry import Rule, rule
from framesmith_backends.lower.scope import Decline, Scope, float_of, promoted
from framesmith_backends.lower.tensor import Operand, Tensor

Formula = Callable[..., Expr]
F = TypeVar("F", bound=Formula)


def core(name: str) -> Formula:
    return lambda *args: Op(name, *args)


def met(s: Scope, formula: Formula, *operands: Operand, within: str | None = None, exact: bool = False) -> Tensor:
    """The result of an operator whose operands are cast to its result's type first (see `Scope.compute`)."""
    dtype = s.result.dtype
    return s.compute(formula, *operands, shape=s.result.shape, dtype=dtype, within=within, meet=dtype, exact=exact)


def elementwise(*names: str, exact: bool = False, floating: bool = False) -> Callable[[F], F]:
    """Register a formula for ATen operators whose operands meet in the result's type.

    Parameters annotated `Expr` are the operands; others are Python numbers, with ATen's defaults. With `exact` the
    last operand is not rounded to a low-precision type if it is a number. With `floating` integers are computed with
    in the default floating type.
    """

    def register(formula: F) -> F:
        is_operand = [one.annotation == "Expr" for one in inspect.signature(formula).parameters.values()]
        rule(*names)(_rule(formula, is_operand, exact, floating))
        return formula

    return register


def _rule(formula: Formula, is_operand: list[bool], exact: bool, floating: bool) -> Rule:
    def lowered(s: Scope, *args: Any, **numbers: Any) -> Tensor:
        given = [*zip(args, is_operand, strict=False)]
        if any(isinstance(a, Tensor) for a, operand in given if not operand):
            raise Decline("a parameter given as a tensor")
        operands = [a for a, operand in given if operand]
        within = compute_type(float_of(promoted(*operands))) if floating else None

        def applied(*elements: Expr) -> Expr:
            left = iter(elements)
            return formula(*(next(left) if operand else a for a, operand in given), **numbers)

        return met(s, applied, *operands, within=within, exact=exact)

    return lowered


def _compared(name: str) -> Rule:
    def lowered(s: Scope, a: Operand, b: Operand) -> Tensor:
        common = promoted(a, b)
        if common == "b1" and name not in ("eq", "ne"):
            common = "u8"
        return s.compute(core(name), a, b, shape=s.result.shape, dtype="b1", meet=common)

    return lowered


def _logical(name: str) -> Rule:
    def lowered(s: Scope, *operands: Operand) -> Tensor:
        return s.compute(core(name), *operands, shape=s.result.shape, dtype="b1")

    return lowered


def times_derivative(name: str) -> Formula:
    """The gradient of the operation's operand, given that of its result and the operand."""
    return lambda grad, x: grad * Op(OPS[name].derivative, x)


for _row in OPS.values():
    _operands = [True] * _row.arity
    if _row.result == "b1":
        _lowered = _compared(_row.name)
    else:
        _lowered = _rule(core(_row.name), _operands, False, _row.kinds == "f")
    rule(*_row.aten.split())(_lowered)
    if _row.aten and _row.derivative:
        rule(f"{_row.aten}_backward")(_rule(times_derivative(_row.name), [True, True], False, False))
for _name in ("and", "or", "xor", "not"):
    rule(f"logical_{_name}")(_logical(_name))

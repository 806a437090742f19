"""Elementwise operators as formulas of the core operations, as ATen computes them, for operands that broadcast."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

from framesmith_backends.ir.dtypes import DTYPES, compute_type, is_float, is_unsigned
from framesmith_backends.ir.expr import Expr, Op, number
from framesmith_backends.ir.ops import OPS
from framesmith_backends.lower.registry import Rule, rule
from framesmith_backends.lower.scope import Decline, Scope, float_of, promoted
from framesmith_backends.lower.tensor import Formula, Operand, Tensor

F = TypeVar("F", bound=Formula)

# 1/6 as float32 has it: ATen multiplies gradients of hardsigmoid of float64 by it, too.
SIXTH = 0.1666666716337204


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return Op("where", condition, a, b)


def like(value: float, other: Expr) -> Expr:
    return number(value, other.dtype)


def core(name: str) -> Formula:
    return lambda *args: Op(name, *args)


def met(s: Scope, formula: Formula, *operands: Operand, within: str | None = None, exact: bool = False) -> Tensor:
    """The result of an operator whose operands are cast to its result's type first (see `Scope.compute`)."""
    dtype = s.result.dtype
    return s.compute(formula, *operands, shape=s.result.shape, dtype=dtype, within=within, meet=dtype, exact=exact)


def elementwise(*names: str, exact: bool = False, floating: bool = False) -> Callable[[F], F]:
    """Register a formula for ATen operators whose operands meet in the result's type.

    Parameters annotated `Expr`, or not at all, are the operands; others are Python numbers, with ATen's defaults. With
    `exact` the last operand is not rounded to a low-precision type if it is a number. With `floating` integers are
    computed with in the default floating type.
    """

    def register(formula: F) -> F:
        parameters = inspect.signature(formula).parameters.values()
        is_operand = [one.annotation in ("Expr", one.empty) for one in parameters]
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
    return lambda s, *operands: s.compute(core(name), *operands, shape=s.result.shape, dtype="b1")


def times_derivative(name: str) -> Formula:
    """The gradient of the operation's operand, given that of its result and the operand."""
    return lambda grad, x: grad * Op(OPS[name].derivative, x)


def _chosen(on_bool: str, otherwise: str) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: Op(on_bool if a.dtype == "b1" else otherwise, a, b)


def _number_among(compare: str, on_bool: str) -> Callable[[Expr, Expr], Expr]:
    def formula(a: Expr, b: Expr) -> Expr:
        return Op(on_bool, a, b) if a.dtype == "b1" else where(Op("or", Op(compare, a, b), Op("ne", b, b)), a, b)

    return formula


def _rounding(name: str) -> Callable[[Expr], Expr]:
    return lambda x: Op(name, x) if is_float(x.dtype) else x


@elementwise("threshold")
def threshold(x: Expr, at: float, value: float) -> Expr:
    return where(x <= at, like(value, x), x)


@elementwise("threshold_backward")
def threshold_backward(grad: Expr, x: Expr, at: float) -> Expr:
    return where(x <= at, like(0, grad), grad)


@elementwise("leaky_relu")
def leaky_relu(x: Expr, slope: float = 0.01) -> Expr:
    return where(x > 0.0, x, x * slope)


@elementwise("leaky_relu_backward")
def leaky_relu_backward(grad: Expr, x: Expr, slope: float, of_result: bool = False) -> Expr:
    return where(x > 0.0, grad, grad * slope)


@elementwise("elu")
def elu(x: Expr, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Expr:
    return where(x < 0.0, Op("expm1", x * input_scale) * (alpha * scale), x * scale)


@elementwise("elu_backward")
def elu_backward(grad: Expr, alpha: float, scale: float, input_scale: float, of_result: bool, y: Expr) -> Expr:
    if of_result:
        return where(y <= 0.0, grad * input_scale * (y + alpha * scale), grad * scale)
    return where(y <= 0.0, grad * (input_scale * alpha * scale) * Op("exp", y * input_scale), grad * scale)


@elementwise("hardtanh")
def hardtanh(x: Expr, low: float = -1.0, high: float = 1.0) -> Expr:
    return Op("min", like(high, x), Op("max", like(low, x), x))


@elementwise("hardtanh_backward")
def hardtanh_backward(grad: Expr, x: Expr, low: float = -1.0, high: float = 1.0) -> Expr:
    return where(Op("or", x <= low, x >= high), like(0, grad), grad)


@elementwise("hardswish_backward")
def hardswish_backward(grad: Expr, x: Expr) -> Expr:
    middle = grad * (x * (1.0 / 3.0) + 0.5)
    return where(x <= -3.0, like(0, grad), where(x < 3.0, middle, grad))


@elementwise("softplus")
def softplus(x: Expr, beta: float = 1.0, at: float = 20.0) -> Expr:
    scaled = x * beta
    inverse = math.copysign(math.inf, beta) if beta == 0 else 1.0 / beta
    return where(scaled > at, x, Op("log1p", Op("exp", scaled)) * inverse)


@elementwise("softplus_backward")
def softplus_backward(grad: Expr, x: Expr, beta: float = 1.0, at: float = 20.0) -> Expr:
    z = Op("exp", x * beta)
    return where(x * beta > at, grad, grad * z / (z + 1.0))


@elementwise("sgn", "sign")
def sign(x: Expr) -> Expr:
    if x.dtype == "b1":
        return x
    positive = where(x > 0, like(1, x), like(0, x))
    return positive if is_unsigned(x.dtype) else where(x < 0, like(-1, x), positive)


@elementwise("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", floating=True)
def xlogy(x: Expr, y: Expr) -> Expr:
    """x * log(y), which is 0 where x is, but for a y that is NaN."""
    return where(Op("ne", y, y), y, where(Op("eq", x, like(0, x)), like(0, x), x * Op("log", y)))


@elementwise("lerp.Tensor", "lerp.Scalar", exact=True)
def lerp(a: Expr, b: Expr, weight: Expr) -> Expr:
    low = a + weight * (b - a)
    high = b - (b - a) * (1.0 - weight)
    return where(Op("abs", weight) < 0.5, low, high)


def left_shift(a: Expr, b: Expr) -> Expr:
    """0 where the shift is negative, or by all bits or more."""
    inside = Op("and", b >= 0, b < DTYPES[b.dtype].bits)
    return where(inside, Op("shl", a, Op("and", b, like(DTYPES[b.dtype].bits - 1, b))), like(0, a))


def right_shift(a: Expr, b: Expr) -> Expr:
    """By all bits where the shift is negative, or by that many or more: 0, or -1 for a negative number."""
    inside = Op("and", b >= 0, b < DTYPES[b.dtype].bits)
    last = DTYPES[b.dtype].bits - 1
    gone = like(0, a) if is_unsigned(a.dtype) else Op("shr", a, like(last, a))
    return where(inside, Op("shr", a, Op("and", b, like(last, b))), gone)


def _quotient(a: Expr, b: Expr) -> tuple[Expr, Expr, Expr]:
    """The truncated quotient of integers, the rest, and whether the rest has not the sign of the divisor."""
    quotient = Op("idiv", a, b)
    rest = a - quotient * b
    return quotient, rest, Op("and", Op("ne", rest, like(0, a)), Op("ne", rest < 0, b < 0))


def floor_divide(a: Expr, b: Expr) -> Expr:
    """Python's floor division."""
    if is_float(a.dtype):
        return Op("floordiv", a, b)
    quotient, _, off = _quotient(a, b)
    return quotient if is_unsigned(a.dtype) else where(off, quotient - 1, quotient)


def remainder(a: Expr, b: Expr) -> Expr:
    """Python's modulo: the sign of the divisor."""
    if is_float(a.dtype):
        mod = Op("fmod", a, b)
        return where(Op("and", Op("ne", mod, like(0, a)), Op("ne", b < 0.0, mod < 0.0)), mod + b, mod)
    _, rest, off = _quotient(a, b)
    return rest if is_unsigned(a.dtype) else where(off, rest + b, rest)


def smooth_l1(x: Expr, y: Expr, beta: float) -> Expr:
    z = Op("abs", x - y)
    return where(z < beta, z * z * 0.5 / like(beta, z), z - 0.5 * beta) if beta else z


def huber(x: Expr, y: Expr, delta: float) -> Expr:
    z = Op("abs", x - y)
    return where(z <= delta, z * z * 0.5, (z - 0.5 * delta) * delta)


def log_sigmoid(x: Expr) -> Expr:
    return Op("min", x, like(0, x)) - Op("log1p", Op("exp", -Op("abs", x)))


@elementwise("addcmul")
def addcmul(x: Expr, a: Expr, b: Expr, value: float = 1) -> Expr:
    return x + a * value * b


@elementwise("addcdiv")
def addcdiv(x: Expr, a: Expr, b: Expr, value: float = 1) -> Expr:
    return x + a * value / b


#: ATen operators -> formulas of their operands alone.
FORMULAS: dict[str, Formula] = {
    "abs": lambda x: x if is_unsigned(x.dtype) else Op("abs", x),
    "neg": lambda x: -x,
    **{name: _rounding(name) for name in ("floor", "ceil", "trunc", "round")},
    "maximum": _chosen("or", "max"),
    "minimum": _chosen("and", "min"),
    # A NaN beside a number is passed over; of equal numbers the first is the result.
    "fmax": _number_among("ge", "or"),
    "fmin": _number_among("le", "and"),
    # The operand order matters for -0.0: on a tie `max` returns its second operand, as ATen's relu does.
    "relu": lambda x: Op("max", like(0, x), x),
    "sigmoid_backward": lambda grad, y: grad * ((1.0 - y) * y),
    "tanh_backward": lambda grad, y: grad * (1.0 - y * y),
    "hardsigmoid": lambda x: hardtanh(x + 3.0, 0.0, 6.0) * (1.0 / 6.0),
    "hardsigmoid_backward": lambda grad, x: where(Op("and", x > -3.0, x < 3.0), grad * SIXTH, like(0, grad)),
    "hardswish": lambda x: x * hardtanh(x + 3.0, 0.0, 6.0) * (1.0 / 6.0),
}

for _name, _formula in FORMULAS.items():
    elementwise(_name)(_formula)
elementwise("mul.Tensor", "mul.Scalar", exact=True)(_chosen("and", "mul"))
elementwise("div.Tensor", "div.Scalar", exact=True)(lambda x, y: x / y)
elementwise("reciprocal", floating=True)(lambda x: 1.0 / x)
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

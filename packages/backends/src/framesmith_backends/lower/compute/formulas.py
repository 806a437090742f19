"""Elementwise operators, losses and derivatives as expressions of the core operations, as ATen computes them."""

from __future__ import annotations

import math
from collections.abc import Callable

from framesmith_backends.ir.dtypes import DTYPES, is_float, is_unsigned
from framesmith_backends.ir.expr import Expr, Op, number
from framesmith_backends.lower.compute.elementwise import elementwise

# 1/6 as float32 has it: ATen multiplies gradients of hardsigmoid of float64 by it, too.
SIXTH = 0.1666666716337204


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return Op("where", condition, a, b)


def like(value: float, other: Expr) -> Expr:
    return number(value, other.dtype)


@elementwise("abs")
def magnitude(x: Expr) -> Expr:
    return x if is_unsigned(x.dtype) else Op("abs", x)


@elementwise("neg")
def negative(x: Expr) -> Expr:
    return -x


@elementwise("reciprocal", floating=True)
def reciprocal(x: Expr) -> Expr:
    return 1.0 / x


def _chosen(on_bool: str, otherwise: str) -> Callable[[Expr, Expr], Expr]:
    def formula(a: Expr, b: Expr) -> Expr:
        return Op(on_bool if a.dtype == "b1" else otherwise, a, b)

    return formula


elementwise("mul.Tensor", "mul.Scalar", exact=True)(_chosen("and", "mul"))
elementwise("maximum")(_chosen("or", "max"))
elementwise("minimum")(_chosen("and", "min"))


def _rounding(name: str) -> Callable[[Expr], Expr]:
    def formula(x: Expr) -> Expr:
        return Op(name, x) if is_float(x.dtype) else x

    return formula


for _name in ("floor", "ceil", "trunc", "round"):
    elementwise(_name)(_rounding(_name))


@elementwise("relu")
def relu(x: Expr) -> Expr:
    # The operand order matters for -0.0: on a tie `max` returns its second operand, as ATen's relu does.
    return Op("max", like(0, x), x)


@elementwise("sigmoid_backward")
def sigmoid_backward(grad: Expr, y: Expr) -> Expr:
    return grad * ((1.0 - y) * y)


@elementwise("tanh_backward")
def tanh_backward(grad: Expr, y: Expr) -> Expr:
    return grad * (1.0 - y * y)


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


@elementwise("hardsigmoid")
def hardsigmoid(x: Expr) -> Expr:
    return hardtanh(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


@elementwise("hardsigmoid_backward")
def hardsigmoid_backward(grad: Expr, x: Expr) -> Expr:
    return where(Op("and", x > -3.0, x < 3.0), grad * SIXTH, like(0, grad))


@elementwise("hardswish")
def hardswish(x: Expr) -> Expr:
    return x * hardtanh(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


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


@elementwise("fmax")
def fmax(a: Expr, b: Expr) -> Expr:
    """The larger of two numbers, the first of equal ones; a NaN beside a number is passed over."""
    return Op("or", a, b) if a.dtype == "b1" else where(Op("or", Op("ge", a, b), Op("ne", b, b)), a, b)


@elementwise("fmin")
def fmin(a: Expr, b: Expr) -> Expr:
    return Op("and", a, b) if a.dtype == "b1" else where(Op("or", Op("le", a, b), Op("ne", b, b)), a, b)


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


def floor_divide(a: Expr, b: Expr) -> Expr:
    """Python's floor division."""
    if is_float(a.dtype):
        return Op("floordiv", a, b)
    quotient = Op("idiv", a, b)
    rest = a - quotient * b
    if is_unsigned(a.dtype):
        return quotient
    off = Op("and", Op("ne", rest, like(0, a)), Op("ne", rest < 0, b < 0))
    return where(off, quotient - 1, quotient)


def remainder(a: Expr, b: Expr) -> Expr:
    """Python's modulo: the sign of the divisor."""
    if not is_float(a.dtype):
        rest = a - Op("idiv", a, b) * b
        if is_unsigned(a.dtype):
            return rest
        off = Op("and", Op("ne", rest, like(0, a)), Op("ne", rest < 0, b < 0))
        return where(off, rest + b, rest)
    rest = Op("fmod", a, b)
    off = Op("and", Op("ne", rest, like(0, a)), Op("ne", b < 0.0, rest < 0.0))
    return where(off, rest + b, rest)


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

"""Simple activations, losses and their derivatives as expressions of the core operations, as ATen computes them."""

from __future__ import annotations

import math

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr, Op, number

# 1/6 as float32 has it: ATen multiplies gradients of hardsigmoid of float64 by it, too.
SIXTH = 0.1666666716337204


def fn(name: str, *args: Expr) -> Expr:
    return Op(name, *args)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return Op("where", condition, a, b)


def like(value: float, other: Expr) -> Expr:
    return number(value, other.dtype)


def relu(x: Expr) -> Expr:
    # The operand order matters for -0.0: on a tie `max` returns its second operand, as ATen's relu does.
    return fn("max", like(0, x), x)


def sigmoid_backward(grad: Expr, y: Expr) -> Expr:
    return grad * ((1.0 - y) * y)


def tanh_backward(grad: Expr, y: Expr) -> Expr:
    return grad * (1.0 - y * y)


def threshold(x: Expr, at: float, value: float) -> Expr:
    return where(x <= at, like(value, x), x)


def threshold_backward(grad: Expr, x: Expr, at: float) -> Expr:
    return where(x <= at, like(0, grad), grad)


def leaky_relu(x: Expr, slope: float) -> Expr:
    return where(x > 0.0, x, x * slope)


def leaky_relu_backward(grad: Expr, x: Expr, slope: float) -> Expr:
    return where(x > 0.0, grad, grad * slope)


def elu(x: Expr, alpha: float, scale: float, input_scale: float) -> Expr:
    return where(x < 0.0, fn("expm1", x * input_scale) * (alpha * scale), x * scale)


def elu_backward(grad: Expr, y: Expr, alpha: float, scale: float, input_scale: float, is_result: bool) -> Expr:
    if is_result:
        return where(y <= 0.0, grad * input_scale * (y + alpha * scale), grad * scale)
    return where(y <= 0.0, grad * (input_scale * alpha * scale) * fn("exp", y * input_scale), grad * scale)


def hardtanh(x: Expr, low: float, high: float) -> Expr:
    return fn("min", like(high, x), fn("max", like(low, x), x))


def hardtanh_backward(grad: Expr, x: Expr, low: float, high: float) -> Expr:
    return where(fn("or", x <= low, x >= high), like(0, grad), grad)


def hardsigmoid(x: Expr) -> Expr:
    return hardtanh(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


def hardsigmoid_backward(grad: Expr, x: Expr) -> Expr:
    return where(fn("and", x > -3.0, x < 3.0), grad * SIXTH, like(0, grad))


def hardswish(x: Expr) -> Expr:
    return x * hardtanh(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


def hardswish_backward(grad: Expr, x: Expr) -> Expr:
    middle = grad * (x * (1.0 / 3.0) + 0.5)
    return where(x <= -3.0, like(0, grad), where(x < 3.0, middle, grad))


def softplus(x: Expr, beta: float, at: float) -> Expr:
    scaled = x * beta
    inverse = math.copysign(math.inf, beta) if beta == 0 else 1.0 / beta
    return where(scaled > at, x, fn("log1p", fn("exp", scaled)) * inverse)


def softplus_backward(grad: Expr, x: Expr, beta: float, at: float) -> Expr:
    z = fn("exp", x * beta)
    return where(x * beta > at, grad, grad * z / (z + 1.0))


def sign(x: Expr) -> Expr:
    if x.dtype == "b1":
        return x
    positive = where(x > 0, like(1, x), like(0, x))
    return positive if x.dtype == "u8" else where(x < 0, like(-1, x), positive)


def fmax(a: Expr, b: Expr) -> Expr:
    """The larger of two numbers, the first of equal ones; a NaN beside a number is passed over."""
    return fn("or", a, b) if a.dtype == "b1" else where(fn("or", fn("ge", a, b), fn("ne", b, b)), a, b)


def fmin(a: Expr, b: Expr) -> Expr:
    return fn("and", a, b) if a.dtype == "b1" else where(fn("or", fn("le", a, b), fn("ne", b, b)), a, b)


def xlogy(x: Expr, y: Expr) -> Expr:
    """x * log(y), which is 0 where x is, but for a y that is NaN."""
    return where(fn("ne", y, y), y, where(fn("eq", x, like(0, x)), like(0, x), x * fn("log", y)))


def lerp(a: Expr, b: Expr, weight: Expr) -> Expr:
    low = a + weight * (b - a)
    high = b - (b - a) * (1.0 - weight)
    return where(fn("abs", weight) < 0.5, low, high)


def left_shift(a: Expr, b: Expr) -> Expr:
    """0 where the shift is negative, or by all bits or more."""
    inside = fn("and", b >= 0, b < DTYPES[b.dtype].bits)
    return where(inside, fn("shl", a, fn("and", b, like(DTYPES[b.dtype].bits - 1, b))), like(0, a))


def right_shift(a: Expr, b: Expr) -> Expr:
    """By all bits where the shift is negative, or by that many or more: 0, or -1 for a negative number."""
    inside = fn("and", b >= 0, b < DTYPES[b.dtype].bits)
    last = DTYPES[b.dtype].bits - 1
    gone = like(0, a) if a.dtype == "u8" else fn("shr", a, like(last, a))
    return where(inside, fn("shr", a, fn("and", b, like(last, b))), gone)


def floor_divide(a: Expr, b: Expr) -> Expr:
    """Python's floor division."""
    if DTYPES[a.dtype].kind == "f":
        return fn("floordiv", a, b)
    quotient = fn("idiv", a, b)
    rest = a - quotient * b
    if a.dtype == "u8":
        return quotient
    off = fn("and", fn("ne", rest, like(0, a)), fn("ne", rest < 0, b < 0))
    return where(off, quotient - 1, quotient)


def remainder(a: Expr, b: Expr) -> Expr:
    """Python's modulo: the sign of the divisor."""
    if a.dtype[0] != "f" and a.dtype != "bf16":
        rest = a - fn("idiv", a, b) * b
        if a.dtype == "u8":
            return rest
        off = fn("and", fn("ne", rest, like(0, a)), fn("ne", rest < 0, b < 0))
        return where(off, rest + b, rest)
    rest = fn("fmod", a, b)
    off = fn("and", fn("ne", rest, like(0, a)), fn("ne", b < 0.0, rest < 0.0))
    return where(off, rest + b, rest)


def smooth_l1(x: Expr, y: Expr, beta: float) -> Expr:
    z = fn("abs", x - y)
    return where(z < beta, z * z * 0.5 / like(beta, z), z - 0.5 * beta) if beta else z


def huber(x: Expr, y: Expr, delta: float) -> Expr:
    z = fn("abs", x - y)
    return where(z <= delta, z * z * 0.5, (z - 0.5 * delta) * delta)


def log_sigmoid(x: Expr) -> Expr:
    return fn("min", x, like(0, x)) - fn("log1p", fn("exp", -fn("abs", x)))

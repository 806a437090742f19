"""Functions of float32 computed in double precision, and rounded once at the end."""

from __future__ import annotations

import math

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math.elementary import INFINITY, LOG2E, at_most
from framesmith_backends.render.llvm.math.float64 import log_terms, narrowed, widened
from framesmith_backends.render.llvm.math.float64_pow import pow_range
from framesmith_backends.render.llvm.math.powers import power_of_two, square, whole_part

# log2 of m in [sqrt(1/2), sqrt(2)] as s * L(s*s), s = (m-1)/(m+1): the series of atanh.
LOG_L = tuple(2.0 * LOG2E / (2 * k + 1) for k in range(10))
EXP_P = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(11))
# Up to this power of two a float is 0.
NOTHING = -150.0
# Below this, x - x**3 / 6 is all that a float holds of asinh.
SMALL = 2.0**-12


def _log2(b: Builder, x: Value) -> Value:
    """log2 of a positive normal double."""
    k, s, p = log_terms(b, x, LOG_L)
    return b.fma(p, s, k)


def _log(b: Builder, x: Value) -> Value:
    return b.mul(_log2(b, x), math.log(2.0))


def pow(b: Builder, x: Value, y: Value) -> Value:
    x, y = b.same(x, y)
    size = b.intrinsic("fabs", x)
    # Zeros, infinities and NaN have no logarithm: it is that of 1.
    place = b.sub(b.bits(size, "i32"), 1)
    known = b.select(b.compare("ult", place, 0x7F7FFFFF), size, b.number(1.0, size))
    power = b.mul(_log2(b, widened(b, known)), widened(b, y))
    # The last power of two below those of doubles is 0.
    power = b.select(b.compare("ole", power, NOTHING), b.number(-1023.0, power), power)
    power = at_most(b, power, 200.0)
    n, t = whole_part(b, power, 1.0)
    result = narrowed(b, b.mul(b.polynomial(b.sub(power, n), EXP_P), power_of_two(b, t)))
    return pow_range(b, x, y, result)


def hypot(b: Builder, x: Value, y: Value) -> Value:
    """sqrt(x*x + y*y); infinite where one of them is, be the other NaN."""
    x, y = b.same(x, y)
    one, two = widened(b, x), widened(b, y)
    result = narrowed(b, b.intrinsic("sqrt", b.fma(one, one, b.mul(two, two))))
    infinite = (b.compare("oeq", b.intrinsic("fabs", value), INFINITY) for value in (x, y))
    return b.select(b.binary("or", *infinite), b.number(INFINITY, x), result)


def _root_beside_one(b: Builder, x: Value, one: float) -> Value:
    """sqrt(x*x + one)."""
    return b.intrinsic("sqrt", b.fma(x, x, one))


def asinh(b: Builder, x: Value) -> Value:
    size = widened(b, b.intrinsic("fabs", x))
    result = narrowed(b, _log(b, b.add(size, _root_beside_one(b, size, 1.0))))
    result = b.select(b.compare("ult", b.intrinsic("fabs", x), INFINITY), result, b.intrinsic("fabs", x))
    result = b.select(b.compare("uno", x, 0.0), x, result)
    size = b.intrinsic("fabs", x)
    near = b.fma(b.mul(square(b, size), -1.0 / 6.0), size, size)
    return b.intrinsic("copysign", b.select(b.compare("olt", size, SMALL), near, result), x)


def acosh(b: Builder, x: Value) -> Value:
    wide = widened(b, x)
    result = narrowed(b, _log(b, b.add(wide, _root_beside_one(b, wide, -1.0))))
    result = b.select(b.compare("oeq", x, INFINITY), x, result)
    return b.select(b.compare("ult", x, 1.0), b.number(math.nan, x), result)

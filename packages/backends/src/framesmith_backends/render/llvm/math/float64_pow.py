"""Powers of float64 by any exponent, at most 1.1 ULP off: the logarithm is a sum of two doubles.

Its relative error is below 2**-64, so that the largest exponents, of a thousand, are off by less than 2**-54.
"""

from __future__ import annotations

import math

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math.elementary import INFINITY, LOG2E, at_most, bounded
from framesmith_backends.render.llvm.math.float64 import EXP2_NOTHING, EXP2_P, split_any
from framesmith_backends.render.llvm.math.powers import DOUBLE, scale_either_way, whole_part

Pair = tuple[Value, Value]
"""A number as the unevaluated sum of two doubles."""

THIRD = (0.3333333333333333, 1.850371707708594e-17)
# 2 / ln(2), and what the double leaves of it.
TWICE_LOG2E = (2.0 * LOG2E, 2.0 * 2.0355273740931033e-17)
# (atanh(s) / s - 1 - z / 3) / z**2 in z = s**2: the series, whose next term is nothing for x from sqrt(1/2) to sqrt(2).
SERIES = tuple(1.0 / (2 * k + 5) for k in range(11))
# Powers of two that are 0 or infinite for certain.
LEAST_POWER, LARGEST_POWER = -1100.0, 1100.0


def pow(b: Builder, x: Value, y: Value) -> Value:
    x, y = b.same(x, y)
    size = b.intrinsic("fabs", x)
    # Zeros, infinities and NaN have no logarithm: it is that of 1.
    place = b.sub(b.bits(size, "i64"), 1)
    known = b.select(b.compare("ult", place, 0x7FEFFFFFFFFFFFFF), size, b.number(1.0, size))
    high, low = _log2(b, known)
    power = b.mul(high, y)
    lost = b.fma(high, y, b.neg(power))
    lost = b.fma(low, y, lost)
    # Beyond these what was lost may be no number, and counts no more.
    far = b.binary("or", b.compare("ule", power, LEAST_POWER), b.compare("uge", power, LARGEST_POWER))
    lost = b.select(far, b.number(0.0, power), lost)
    power, kept = bounded(b, at_most(b, power, LARGEST_POWER), EXP2_NOTHING, 1.0, 1025.0)
    n, t = whole_part(b, power, 1.0, DOUBLE.bias - 1)
    r = b.add(b.sub(power, n), lost)
    result = scale_either_way(b, b.fma(b.polynomial(r, EXP2_P), r, 1.0), n, t, kept)
    return pow_range(b, x, y, result)


def _log2(b: Builder, x: Value) -> Pair:
    """The logarithm of a positive finite double."""
    k, m = split_any(b, x)
    f = b.sub(m, 1.0)
    s = _quotient(b, f, m)
    t = _series(b, s)
    total = _exact_mul(b, s, t)
    high = b.add(s[0], total[0])
    low = b.add(b.add(b.sub(s[0], high), total[0]), b.add(s[1], total[1]))
    whole = _exact_mul(b, (high, low), (b.number(TWICE_LOG2E[0], x), b.number(TWICE_LOG2E[1], x)))
    sum = b.add(k, whole[0])  # k is 0, or larger
    return sum, b.add(b.add(b.sub(k, sum), whole[0]), whole[1])


def _quotient(b: Builder, f: Value, m: Value) -> Pair:
    """f / (m + 1) for m = f + 1 between sqrt(1/2) and sqrt(2)."""
    divisor = b.add(m, 1.0)
    rest = b.sub(m, b.sub(divisor, 1.0))
    high = b.div(f, divisor)
    left = b.fma(b.neg(high), divisor, f)
    return high, b.div(b.fma(b.neg(high), rest, left), divisor)


def _series(b: Builder, s: Pair) -> Pair:
    """atanh(s) / s - 1."""
    z = _exact_mul(b, s, s)
    small = b.mul(z[0], b.polynomial(z[0], SERIES))
    high = b.add(small, THIRD[0])
    low = b.add(b.add(b.sub(b.number(THIRD[0], high), high), small), THIRD[1])
    return _exact_mul(b, z, (high, low))


def _exact_mul(b: Builder, x: Pair, y: Pair) -> Pair:
    high = b.mul(x[0], y[0])
    low = b.fma(x[0], y[0], b.neg(high))
    return high, b.fma(x[0], y[1], b.fma(x[1], y[0], low))


def pow_range(b: Builder, x: Value, y: Value, result: Value) -> Value:
    """The cases of C's pow: zeros, infinities, negative bases, NaN."""
    one, zero, inf = (b.number(v, x) for v in (1.0, 0.0, INFINITY))
    ax, ay = b.intrinsic("fabs", x), b.intrinsic("fabs", y)
    whole = b.intrinsic("trunc", y)
    is_whole, half = b.compare("oeq", whole, y), b.mul(whole, 0.5)
    is_odd = b.binary("and", is_whole, b.compare("one", b.intrinsic("trunc", half), half))
    down = b.compare("olt", y, 0.0)
    # |x| zero or infinite, and |y| infinite.
    result = b.select(b.compare("oeq", x, 0.0), b.select(down, inf, zero), result)
    result = b.select(b.compare("oeq", ax, INFINITY), b.select(down, zero, inf), result)
    grows = b.binary("xor", b.compare("ogt", ax, 1.0), down)
    at_infinity = b.select(b.compare("oeq", ax, 1.0), one, b.select(grows, inf, zero))
    result = b.select(b.compare("oeq", ay, INFINITY), at_infinity, result)
    # The sign: negative for an odd power of a negative base; NaN for a broken power of a finite one.
    signed = b.select(is_odd, b.intrinsic("copysign", result, x), result)
    broken = b.binary("and", b.compare("olt", x, 0.0), b.binary("xor", is_whole, True))
    broken = b.binary("and", broken, b.compare("olt", ax, INFINITY))
    signed = b.select(broken, b.number(math.nan, x), signed)
    nan = b.compare("uno", x, y)
    signed = b.select(nan, b.number(math.nan, x), signed)
    always_one = b.binary("or", b.compare("oeq", y, 0.0), b.compare("oeq", x, 1.0))
    return b.select(always_one, one, signed)

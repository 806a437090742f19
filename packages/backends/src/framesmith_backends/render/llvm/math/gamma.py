"""The logarithm of the gamma function of float32, and its derivative.

Each function has a form for what is above a small negative number, in float32 but for sums that cancel, and one by
reflection for the other negative numbers, in double precision throughout: there a root lies between any two poles.
tests/render/llvm/test_special.py checks the errors.

Note [Fits]: polynomials are fits of least relative error, found from values of 40 digits at the points of Chebyshev, a
dozen for each coefficient: least squares again and again, each time with weights times the errors left. Coefficients in
float32 are rounded one by one from the first on, the others fitted again to what is left. A first one with more digits
than a float has is added in two parts, or in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math import elementary
from framesmith_backends.render.llvm.math.elementary import INFINITY, LARGE, LN2_HIGH, LN2_LOW, at_most, log_parts
from framesmith_backends.render.llvm.math.float64 import in_parts, log_terms, narrowed, widened
from framesmith_backends.render.llvm.math.libm import instead, out_of_line

# From here on functions are computed by the series of Stirling, below by polynomials.
FAR = 2.5
# lgamma(2 + d) / (d * (1 + d)) on [-1, 1/2].
LGAMMA_P = (
    0.4227843355739144, -0.100317322, 0.0329649374, -0.0123832971, 0.00500049861, -0.00211852882, 0.000893441262,
    -0.00036556751, 0.00029085172, -9.89239925e-05, -0.000145070677, -0.000143030586,
)  # fmt: skip
# x * (lgamma(x) - (x - 1/2) log(x) + x - HALF_LOG_TAU) on [5/2, inf), and on [6, inf) in double precision, in 1 / x**2.
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
LGAMMA_Q = (0.0833333358, -0.00277823117, 0.000806354394, -0.000696634816, 0.000881888554)
LGAMMA_WIDE_Q = (
    0.08333333333333236, -0.002777777775223559, 0.0007936497000732278, -0.0005950657887201945, 0.000829304208799211,
    -0.0014875733980161923,
)  # fmt: skip
# (digamma(ROOT + t) - AT_ROOT) / t between 0.99 and 5/2, ROOT being the float nearest the root.
ROOT, AT_ROOT = 1.4616321325302124, -1.203605254910667e-08
DIGAMMA_P = (
    0.967672260490261, -0.44276318, 0.258499116, -0.163942382, 0.10784281, -0.0722229779, 0.0486265048, -0.0328001343,
    0.023090627, -0.0172745343, 0.0114683136, -0.005018692, 0.000988943502,
)  # fmt: skip
# x**2 * (log(x) - 1 / (2 * x) - digamma(x)), likewise.
DIGAMMA_Q = (0.0833333358, -0.0083333943, 0.00395811908, -0.00382716185, 0.00370475068)
DIGAMMA_WIDE_Q = (
    0.08333333333332142, -0.0083333333018667, 0.003968240456624084, -0.004164529770767385, 0.0074205065400496754,
    -0.015669656576909687,
)  # fmt: skip
# Below these negative numbers a function is computed by reflection.
LGAMMA_REFLECTED, DIGAMMA_REFLECTED = -1e-8, -0.01
# sin(pi * u) / u and pi * u / tan(pi * u), in u**2 up to 1/4.
SINE = (
    3.141592653589794, -5.16771278005015, 2.5501640398830423, -0.5992645292974971, 0.08214588388683057,
    -0.0073703926223799175, 0.0004660662839093369, -2.1221800409636803e-05,
)  # fmt: skip
COTANGENT = (
    1.0, -3.289868133697081, -2.1646464672239527, -2.034686145160085, -2.0081535879075036, -2.0020240750146767,
    -1.9997986451855383, -2.0093844302725774, -1.9145645679477008, -2.5498269674944365, 0.4437045417246648,
    -9.260019272693595, 11.349929102544422, -14.477156302384284,
)  # fmt: skip
# 2 * atanh(s) / s in s**2, for (1 + s) / (1 - s) between sqrt(1/2) and sqrt(2).
LOG = (
    2.000000000000001, 0.6666666666637929, 0.4000000012612864, 0.2857140799349522, 0.22223873366189792,
    0.1811111173282044, 0.16935456043352448,
)  # fmt: skip
# From here on the series hold in double precision, and t (t + 1) (t + 2) (t + 3) (t + 4) (t + 5), which leads there.
SHIFT = 6
RISING = (0.0, 120.0, 274.0, 225.0, 85.0, 15.0, 1.0)
RISING_SLOPE = tuple(k * c for k, c in enumerate(RISING))[1:]


def _log(b: Builder, x: Value) -> Value:
    """log of a positive normal number in double precision, off by few units of the last place of 1."""
    k, s, p = log_terms(b, x, LOG)
    return b.fma(k, math.log(2.0), b.mul(s, p))


def _whole(b: Builder, x: Value) -> tuple[Value, Value]:
    """(x to the nearest whole number, whether it is one)."""
    n = b.intrinsic("rint", x)
    return n, b.compare("oeq", n, x)


def _reflected(b: Builder, where: Value, result: Value, other: Callable[..., Value], *args: Value) -> Value:
    """The result, except for the other function's in the lanes of `where`."""

    def chosen() -> Value:
        return b.select(where, out_of_line(b, other.__name__, other, *args), result)

    return instead(b, where, result, chosen)


@in_parts
def lgamma(b: Builder, x: Value) -> Value:
    size = b.intrinsic("fabs", x)
    result = _lgamma_of_positive(b, size)
    n, whole = _whole(b, x)
    reflected = b.binary("and", b.compare("olt", x, LGAMMA_REFLECTED), b.binary("xor", whole, True))
    result = _reflected(b, reflected, result, _lgamma_of_negative, x, n)
    pole = b.binary("and", whole, b.compare("ole", x, 0.0))
    infinite = b.binary("or", pole, b.compare("oeq", x, INFINITY))
    return b.select(infinite, b.number(INFINITY, x), result)


def _lgamma_of_positive(b: Builder, x: Value) -> Value:
    """Its terms cancel where they are as large as 10 times their sum: they are added in double precision."""
    one, zero = b.number(1.0, x), b.number(0.0, x)
    k, m = elementary.split(b, x)
    f, tail = log_parts(b, b.sub(m, one))
    log = b.add(b.fma(widened(b, k), math.log(2.0), widened(b, f)), widened(b, tail))
    # log(x) is subtracted from the value of 1 + x in the first interval.
    first = b.compare("olt", x, 1.5)
    d = b.sub(x, b.select(first, one, b.number(2.0, x)))
    wide_d = widened(b, d)
    p = b.fma(widened(b, b.polynomial(d, LGAMMA_P[1:])), wide_d, LGAMMA_P[0])
    both = b.mul(widened(b, b.select(first, x, b.sub(x, one))), wide_d)
    near = b.fma(both, p, b.mul(log, widened(b, b.select(first, b.neg(one), zero))))
    r = b.div(one, at_most(b, x, LARGE))
    series = b.mul(r, b.polynomial(b.mul(r, r), LGAMMA_Q))
    wide = widened(b, x)
    rest = b.add(b.sub(b.number(HALF_LOG_TAU, wide), wide), widened(b, series))
    far = b.fma(b.sub(wide, 0.5), log, rest)
    return narrowed(b, b.select(b.compare("olt", x, FAR), near, far))


def _lgamma_of_negative(b: Builder, x: Value, n: Value) -> Value:
    """log(pi / |x sin(pi x)|) - lgamma(|x|), given x to the nearest whole number."""
    t, u = widened(b, b.intrinsic("fabs", x)), widened(b, b.intrinsic("fabs", b.sub(x, n)))
    sine = b.mul(u, b.polynomial(b.mul(u, u), SINE))
    far = b.add(t, float(SHIFT))
    r = b.div(b.number(1.0, t), far)
    series = b.fma(r, b.polynomial(b.mul(r, r), LGAMMA_WIDE_Q), b.sub(b.number(HALF_LOG_TAU, t), far))
    positive = b.fma(b.sub(far, 0.5), _log(b, far), series)
    # Of the factors that lead from the first number to the second t itself is divided by.
    rising = b.mul(b.polynomial(t, RISING[1:]), math.pi)
    return narrowed(b, b.sub(_log(b, b.div(rising, sine)), positive))


@in_parts
def digamma(b: Builder, x: Value) -> Value:
    result = _digamma_of_positive(b, x)
    n, whole = _whole(b, x)
    below = b.compare("olt", x, DIGAMMA_REFLECTED)
    reflected = b.binary("and", below, b.binary("xor", whole, True))
    result = _reflected(b, reflected, result, _digamma_of_negative, x, n)
    result = b.select(b.compare("oeq", x, INFINITY), x, result)
    return b.select(b.binary("and", whole, below), b.number(math.nan, x), result)


def _digamma_of_positive(b: Builder, x: Value) -> Value:
    one, zero = b.number(1.0, x), b.number(0.0, x)
    r = b.div(one, at_most(b, x, LARGE))
    below = b.compare("olt", x, 1.0)
    t = b.sub(x, b.select(below, b.number(ROOT - 1.0, x), b.number(ROOT, x)))  # exact where it is small
    # Below 1, 1 / x is subtracted from the value of 1 + x, and first what was lost of it.
    lost = b.select(below, b.mul(b.fma(b.neg(x), r, one), r), zero)
    high = elementary.rounded(DIGAMMA_P[0])
    p = b.fma(t, b.polynomial(t, DIGAMMA_P[1:]), DIGAMMA_P[0] - high)
    near = b.fma(t, high, b.fma(t, p, b.sub(b.number(AT_ROOT, x), lost)))
    near = b.sub(near, b.select(below, r, zero))
    k, m = elementary.split(b, x)
    f, tail = log_parts(b, b.sub(m, one))
    less = b.mul(r, b.fma(r, b.polynomial(b.mul(r, r), DIGAMMA_Q), 0.5))
    far = b.fma(k, LN2_HIGH, b.add(f, b.sub(b.fma(k, LN2_LOW, tail), less)))
    result = b.select(b.compare("olt", x, FAR), near, far)
    return b.select(b.compare("oeq", b.intrinsic("fabs", r), INFINITY), b.neg(r), result)


def _digamma_of_negative(b: Builder, x: Value, n: Value) -> Value:
    """digamma(1 - x) - pi / tan(pi x), given x to the nearest whole number."""
    u = widened(b, b.sub(x, n))
    cotangent = b.div(b.polynomial(b.mul(u, u), COTANGENT), u)
    wide = widened(b, x)
    t = b.sub(b.number(1.0, wide), wide)
    step = b.div(b.polynomial(t, RISING_SLOPE), b.polynomial(t, RISING))
    far = b.add(t, float(SHIFT))
    r = b.div(b.number(1.0, t), far)
    series = b.mul(r, b.fma(r, b.polynomial(b.mul(r, r), DIGAMMA_WIDE_Q), 0.5))
    return narrowed(b, b.sub(b.sub(_log(b, far), b.add(series, step)), cotangent))

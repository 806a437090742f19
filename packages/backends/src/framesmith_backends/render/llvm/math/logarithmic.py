"""Functions of float32 made of logarithms: the inverse of `erf`, and logarithms of sums of powers.

Polynomials are those of Note [Fits] in `gamma`; tests/render/llvm/test_special.py checks the errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math import elementary
from framesmith_backends.render.llvm.math.elementary import INFINITY, LN2_HIGH, LN2_LOW, rounded
from framesmith_backends.render.llvm.math.libm import instead
from framesmith_backends.render.llvm.math.powers import power_of_two, times_power, whole_part

# erfinv(x) / x, with w = -log(1 - x**2): in w below 5, else in sqrt(w) - 3.
ERFINV_FAR, ERFINV_ROOT = 5.0, 3.0
ERFINV_NEAR_P = (
    0.8862269204955628, 0.232013822, 0.0115486318, -0.00233424967, -0.000127529813, 4.45931801e-05, 3.97369013e-06,
    -1.97455915e-06, 2.20826024e-07, -8.78185524e-09,
)  # fmt: skip
ERFINV_FAR_P = (
    2.8329767955933702, 1.00167513, 0.00944569334, -0.00763984676, 0.00568310125, -0.00358557305, 0.00149599276,
    -7.84108779e-05, -0.000318785751, 0.000129725915,
)  # fmt: skip
SMALL = 2.0**-90
# log(1 + e) / e and log2(1 + e) / e on [0, 1].
LOG1P_P = (
    1.0, -0.499999315, 0.333304703, -0.24958156, 0.196931437, -0.15348734, 0.106689721, -0.0575470328, 0.0201404728,
    -0.00330390944,
)  # fmt: skip
LOG2P_P = (
    1.44269502, -0.721344531, 0.480815679, -0.359712273, 0.282488823, -0.21717903, 0.147236332, -0.0768196285,
    0.0259201415, -0.00410053739,
)  # fmt: skip
# Beside a number from this on, powers beyond the first ends are nothing.
NOTHING = 2.0**-60


def erfinv(b: Builder, x: Value) -> Value:
    v = b.fma(b.neg(x), x, 1.0)
    k, m = elementary.split_normal(b, v)
    f, tail = elementary.log_parts(b, b.sub(m, 1.0))
    w = b.neg(b.fma(k, LN2_HIGH, b.add(f, b.fma(k, LN2_LOW, tail))))
    near = b.compare("olt", w, ERFINV_FAR)
    t = b.select(near, w, b.sub(b.intrinsic("sqrt", w), ERFINV_ROOT))
    # Of the first coefficients what a float loses is added first.
    first, other = ERFINV_NEAR_P[0], ERFINV_FAR_P[0]
    pairs = [*zip(ERFINV_NEAR_P, ERFINV_FAR_P, strict=True)][1:]
    *others, result = (
        b.select(near, b.number(one, x), b.number(another, x))
        for one, another in ((first - rounded(first), other - rounded(other)), *pairs)
    )
    for coefficient in reversed(others):
        result = b.fma(result, t, coefficient)
    size = b.intrinsic("fabs", x)
    # Of a small number the addend is subnormal, and counts nothing beside it.
    result = b.select(b.compare("ogt", size, SMALL), result, b.number(0.0, x))
    result = b.fma(x, b.select(near, b.number(first, x), b.number(other, x)), b.mul(x, result))
    result = b.select(b.compare("ogt", v, 0.0), result, b.number(math.nan, x))
    limit = b.intrinsic("copysign", b.number(INFINITY, x), x)
    return b.select(b.compare("oeq", size, 1.0), limit, result)


def _exp(b: Builder, d: Value) -> tuple[Value, Value]:
    """(t, p): e**d = p * 2**n, and t holds n as `whole_part` leaves it."""
    _, t, r = elementary.reduced_exponent(b, d)
    return t, b.add(elementary.exp_rest(b, r), 1.0)


def _exp2(b: Builder, d: Value) -> tuple[Value, Value]:
    n, t = whole_part(b, d, 1.0)
    r = b.sub(d, n)
    return t, b.fma(b.polynomial(r, elementary.EXP2_P), r, 1.0)


def _log_of_sum(
    power: Callable[[Builder, Value], tuple[Value, Value]],
    logarithm: tuple[float, ...],
    ends: tuple[float, float],
    nothing: float,
) -> Callable[..., Value]:
    """The larger number and the logarithm of 1 + a power of minus the difference, which is rounded as eager's is.

    Powers beyond the first end are nothing beside a number of ordinary size, those beyond the second always. Between
    them the logarithm is the power times what multiplies it in the polynomial.
    """

    def function(b: Builder, x: Value, y: Value) -> Value:
        x, y = b.same(x, y)
        larger = b.select(b.compare("ogt", x, y), x, y)
        # Infinities of one sign have no difference.
        distance = b.select(b.compare("oeq", x, y), b.number(0.0, x), b.neg(b.intrinsic("fabs", b.sub(x, y))))

        def bounded(end: float) -> Value:
            return b.select(b.compare("olt", distance, end), b.number(end, x), distance)

        t, p = power(b, bounded(ends[0]))
        e = times_power(b, p, t)
        result = b.fma(e, b.polynomial(e, logarithm), larger)
        beyond = b.compare("olt", distance, ends[0])
        counts = b.binary("and", beyond, b.compare("olt", b.intrinsic("fabs", larger), NOTHING))

        def beside_small() -> Value:
            """Both 2**64 times as large, so that of a small number and a smaller power their sum alone is subnormal."""
            t, p = power(b, bounded(ends[1]))
            e = b.mul(p, power_of_two(b, t, 64))
            e = b.select(b.binary("and", counts, b.compare("ogt", distance, nothing)), e, b.number(0.0, e))
            beside = b.mul(b.select(counts, larger, b.number(0.0, x)), 2.0**64)
            found = b.mul(b.fma(e, logarithm[0], beside), 2.0**-64)
            return b.select(counts, found, result)

        found = instead(b, counts, result, beside_small)
        return b.select(b.compare("uno", x, y), b.number(math.nan, x), found)

    return function


logaddexp = _log_of_sum(_exp, LOG1P_P, (-60.0, -104.5), elementary.EXP_NOTHING)
logaddexp2 = _log_of_sum(_exp2, LOG2P_P, (-86.0, -151.0), -150.52877807617188)

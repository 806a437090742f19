"""Elementary functions of float64 as straight-line IR, at most 1.5 ULP off over the whole range.

Written as those of `math`, whose notes hold here too; polynomials are minimax fits made for these reductions
(tests/render/llvm/test_double.py checks the errors). No conversion between integers and doubles is needed, which
processors without AVX-512 do not have: whole numbers are read from, and written into, a double's low bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math import elementary, powers
from framesmith_backends.render.llvm.math.elementary import LOG2E, at_most, log_range
from framesmith_backends.render.llvm.math.libm import by_library
from framesmith_backends.render.llvm.math.powers import DOUBLE, square, times_power, whole_part

Function = Callable[[Builder, Value], Value]

# Or-ing a whole number below 2**52 into this double's bits adds it.
WHOLE = 2.0**52
# What a logarithm's argument is divided by a power of two to be at least: the double above sqrt(1/2), and its bits.
ROOT_BITS, ONE_BITS = 0x3FE6A09E667F3BCD, 0x3FF0000000000000
LN2 = (0.6931471805599453, 2.3190468138462996e-17)
# The first part with trailing zeros, so that multiples by exponents are exact.
LOG10_2 = (0.30102999566395283, 2.8363394551044964e-14)
LOG2E_PARTS, LOG10E_PARTS = (LOG2E, 2.0355273740931033e-17), (0.4342944819032518, 1.098319650216765e-17)
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
# The largest numbers whose exp and exp2 are 0.
EXP_NOTHING, EXP2_NOTHING = -745.1332191019412, -1075.0
# Beyond this the three parts are not enough, and the C library's exact reduction is called.
TRIG_LIMIT = 1e6
# (e**r - 1 - r) / r**2 on [-ln(2)/2, ln(2)/2]; the second with all digits near 0.
EXP_Q = (
    0.5000000000000012, 0.166666666666667, 0.04166666666651549, 0.00833333333330728, 0.0013888888946997427,
    0.0001984126991726495, 2.4801489960371295e-05, 2.7557216383893638e-06, 2.7631274378944706e-07,
    2.511784061024113e-08,
)  # fmt: skip
EXPM1_Q = (
    0.5, 0.16666666666666677, 0.04166666666666667, 0.008333333333321424, 0.001388888888888605,
    0.00019841269886705735, 2.4801587317819397e-05, 2.755724357417979e-06, 2.7557283199654874e-07,
    2.5109274663240656e-08, 2.0910780916176643e-09,
)  # fmt: skip
# (2**r - 1) / r on [-1/2, 1/2].
EXP2_P = (
    0.6931471805599453, 0.24022650695910133, 0.05550410866482174, 0.009618129107593326, 0.0013333558146378984,
    0.00015403530458086548, 1.5252733867592901e-05, 1.3215434813283494e-06, 1.0178046439042426e-07,
    7.073860836245118e-09, 4.4573906605670584e-10,
)  # fmt: skip
# (2 atanh(s) - 2 s) / s**3 in s**2, for (1 + s) / (1 - s) between sqrt(1/2) and sqrt(2).
LOG_L = (
    0.6666666666666734, 0.39999999999414815, 0.28571428742367533, 0.22222198574514787, 0.18183564285785658,
    0.1531405098416952, 0.1479595049668841,
)  # fmt: skip
SIN_S = (
    -0.16666666666666632, 0.008333333333322424, -0.00019841269829816283, 2.7557313694964688e-06,
    -2.5050758608595574e-08, 1.5896825161920556e-10,
)  # fmt: skip
COS_C = (
    0.0416666666666666, -0.0013888888888874138, 2.4801587289491525e-05, -2.7557314355105686e-07,
    2.087572366051612e-09, -1.1359668396268274e-11,
)  # fmt: skip
TANH_P = (
    -0.33333333333333315, 0.1333333333332989, -0.053968253966134305, 0.021869488470651455, -0.008863234341467895,
    0.003592114270987366, -0.001455727615060059, 0.000589458616133008, -0.00023703010703506543,
    9.158978207988907e-05, -3.0217951372875813e-05, 6.055628892419451e-06,
)  # fmt: skip
ERF_SMALL = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954885, -0.02686617064507787, 0.005223977624828394,
    -0.0008548326981423858, 0.0001205533113290754, -1.4925595771308064e-05, 1.646100846796314e-06,
    -1.635039615814245e-07, 1.4660328525181357e-08, -1.1374955789778035e-09, 5.960686654847134e-11,
)  # fmt: skip
# -log2(erfc(t)) / t on [1, 5.95], in t - ERF_MIDDLE.
ERF_MIDDLE, ERF_END = 2.75, 5.95
ERF_LARGE = (
    4.82864280931657, 1.3008260794761055, 0.026032939866763527, -0.004779990625129685, 0.0008436991985130925,
    -0.00013857658008834155, 2.0177263154328305e-05, -2.310956200476004e-06, 1.0331991710060245e-07,
    4.632907513972754e-08, -2.0104452680069023e-08, 5.353453678310327e-09, -1.127523586316183e-09,
    2.1097082956203394e-10, -2.5339982951590482e-11, -2.65875722661478e-12, -7.339441253354255e-13,
    3.12077899822625e-15, 2.899612546128128e-13,
)  # fmt: skip


def _reduced_exponent(b: Builder, x: Value) -> tuple[Value, Value, Value, Value]:
    """(n, t, r, tail) with x = n ln 2 + r + tail and |r| <= ln(2)/2; t holds n as in `whole_part`."""
    n, t = whole_part(b, x, LOG2E)
    head = b.fma(n, -LN2[0], x)  # exact
    low = b.mul(n, LN2[1])
    r = b.sub(head, low)
    return n, t, r, b.sub(b.sub(head, r), low)


def _exp_of_rest(b: Builder, x: Value, more: int = 0) -> tuple[Value, Value, Value]:
    """(n, t, p) with e**x = p * 2**n; t holds n + more as in `whole_part`."""
    n, t = whole_part(b, x, LOG2E, more)
    r = b.fma(n, -LN2[1], b.fma(n, -LN2[0], x))
    return n, t, b.add(b.fma(b.polynomial(r, EXP_Q), square(b, r), r), 1.0)


def exp(b: Builder, x: Value) -> Value:
    x, kept = elementary.bounded(b, x, EXP_NOTHING, LN2[0], 710.0)
    n, t, p = _exp_of_rest(b, x, more=DOUBLE.bias - 1)
    return powers.scale_either_way(b, p, n, t, kept)


def exp2(b: Builder, x: Value) -> Value:
    x, kept = elementary.bounded(b, x, EXP2_NOTHING, 1.0, 1025.0)
    n, t = whole_part(b, x, 1.0, DOUBLE.bias - 1)
    r = b.sub(x, n)
    return powers.scale_either_way(b, b.fma(b.polynomial(r, EXP2_P), r, 1.0), n, t, kept)


def expm1(b: Builder, x: Value) -> Value:
    n, t, r, tail = _reduced_exponent(b, elementary.clamp(b, x, -40.0, 710.0))
    q = b.fma(b.polynomial(r, EXPM1_Q), powers.approximate_square(b, r), tail)
    # 2 * (s (r + q) + (s - 1/2)) with s = 2**(n-1), which stays finite for n = 1024.
    s, near = powers.power_of_two(b, t, -1), b.compare("oeq", n, 0.0)
    half = b.fma(s, q, b.fma(s, r, b.sub(s, b.select(near, b.number(0.0, s), b.number(0.5, s)))))
    return elementary.with_sign(b, b.select(near, b.add(r, q), b.mul(half, 2.0)), x)


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e) or e / (1 + e), with e = exp(-|x|): the small results are accurate down to the subnormals."""
    positive = b.compare("oge", x, 0.0)
    y, kept = elementary.falling(b, x, positive, EXP_NOTHING, LN2[0])
    _, t, r, tail = _reduced_exponent(b, y)
    p = b.add(b.add(r, b.fma(b.polynomial(r, EXP_Q), square(b, r), tail)), 1.0)
    e = powers.scale(b, p, t, kept=kept)
    return elementary.over_one_plus(b, b.select(positive, b.number(1.0, x), e), e)


def split(b: Builder, x: Value, extra: Value | None = None) -> tuple[Value, Value]:
    """(k, m) as doubles, x = m * 2**(k - extra) with m in [sqrt(1/2), sqrt(2)), for positive normal x."""
    raw = b.add(b.bits(x, "i64"), ONE_BITS - ROOT_BITS)
    whole = b.bits(b.binary("or", b.binary("lshr", raw, 52), 0x4330000000000000), "double")
    k = b.sub(whole, WHOLE + 1023 if extra is None else b.add(extra, WHOLE + 1023))
    m = b.bits(b.add(b.binary("and", raw, 0xFFFFFFFFFFFFF), ROOT_BITS), "double")
    return k, m


def split_any(b: Builder, x: Value) -> tuple[Value, Value]:
    """`split` for positive finite x, subnormal too."""
    small = b.compare("olt", x, 2.0**-1022)
    extra = b.select(small, b.number(54.0, x), b.number(0.0, x))
    return split(b, b.select(small, b.mul(x, 2.0**54), x), extra)


def _log_parts(b: Builder, f: Value) -> tuple[Value, Value]:
    """(half of f**2, what is left): log(1 + f) = f - half + rest, for 1 + f in [sqrt(1/2), sqrt(2))."""
    s = b.div(f, b.add(f, 2.0))
    z = b.mul(s, s)
    half = b.mul(b.mul(f, 0.5), f)
    return half, b.mul(s, b.fma(b.polynomial(z, LOG_L), z, half))


def _log_sum(b: Builder, k: Value, f: Value) -> Value:
    """k ln 2 + log(1 + f)."""
    half, rest = _log_parts(b, f)
    return b.fma(k, LN2[0], b.add(f, b.sub(b.fma(k, LN2[1], rest), half)))


def log(b: Builder, x: Value) -> Value:
    k, m = split_any(b, x)
    return log_range(b, x, _log_sum(b, k, b.sub(m, 1.0)))


def log1p(b: Builder, x: Value) -> Value:
    u = b.add(x, 1.0)
    # What rounding 1 + x lost, on the scale of m; nothing that counts for large x.
    back = b.sub(u, x)
    lost = b.add(b.sub(b.number(1.0, x), back), b.sub(x, b.sub(u, back)))
    k, m = split(b, u)
    unit = b.bits(b.sub(b.bits(m, "i64"), b.bits(u, "i64")), "i64")  # minus k in the exponent's bits
    # Of numbers that are their own logarithms nothing is computed.
    size = b.intrinsic("fabs", x)
    counts = b.compare("ogt", size, 2.0**-55)
    power = b.bits(b.add(unit, ONE_BITS), "double")
    among = b.binary("and", counts, b.compare("olt", size, 2.0**60))
    lost = b.mul(lost, b.select(among, power, b.number(0.0, x)))
    return b.select(counts, log_range(b, x, _log_sum(b, k, b.add(b.sub(m, 1.0), lost)), at=-1.0), x)


def _log_in_base(b: Builder, x: Value, factor: tuple[float, float], unit_high: float, unit_low: float) -> Value:
    """factor * log(m) + k * (unit_high + unit_low), with the rounding error of the first term."""
    k, m = split_any(b, x)
    f = b.sub(m, 1.0)
    half, rest = _log_parts(b, f)
    head = b.sub(f, half)
    rest = b.add(b.sub(b.sub(f, head), half), rest)
    prod = b.mul(head, factor[0])
    low = b.fma(head, factor[0], b.neg(prod))
    low = b.fma(rest, factor[0], b.fma(head, factor[1], low))
    low = b.fma(k, unit_low, low)
    # The sum of the large parts with its rounding error; the first is 0 or larger than the second.
    whole = b.mul(k, unit_high)
    total = b.add(whole, prod)
    return log_range(b, x, b.add(total, b.add(b.add(b.sub(whole, total), prod), low)))


log2 = partial(_log_in_base, factor=LOG2E_PARTS, unit_high=1.0, unit_low=0.0)
log10 = partial(_log_in_base, factor=LOG10E_PARTS, unit_high=LOG10_2[0], unit_low=LOG10_2[1])


def _wave(b: Builder, x: Value, shift: int, library: str) -> Value:
    n, t = whole_part(b, x, 2.0 / math.pi)
    r = b.fma(n, -HALF_PI[0], x)  # exact
    r = b.fma(n, -HALF_PI[1], r)
    r = b.fma(n, -HALF_PI[2], r)
    quadrant = b.add(b.bits(t, "i64"), shift)
    z = square(b, r)
    sine = b.fma(b.mul(b.polynomial(z, SIN_S), z), r, r)
    head = b.fma(z, -0.5, 1.0)
    lost = b.fma(z, -0.5, b.sub(b.number(1.0, x), head))
    cosine = b.add(head, b.fma(b.mul(b.polynomial(z, COS_C), z), z, lost))
    odd = b.compare("ne", b.binary("and", quadrant, 1), 0)
    value = b.bits(b.select(odd, cosine, sine), "i64")
    sign = b.binary("shl", b.binary("and", quadrant, 2), 62)
    far = b.compare("oge", b.intrinsic("fabs", x), TRIG_LIMIT)
    return by_library(b, far, library, (x,), b.bits(b.binary("xor", value, sign), "double"))


def sin(b: Builder, x: Value) -> Value:
    # sin(-0.0) is -0.0.
    return b.select(b.compare("oeq", x, 0.0), x, _wave(b, x, 0, "sin"))


def cos(b: Builder, x: Value) -> Value:
    return _wave(b, x, 1, "cos")


def tanh(b: Builder, x: Value) -> Value:
    size = b.intrinsic("fabs", x)
    z = square(b, x)
    near = b.fma(b.mul(b.polynomial(z, TANH_P), z), x, x)
    # Beyond 20, tanh is 1 to the last bit.
    bounded = at_most(b, size, 20.0)
    _, t, p = _exp_of_rest(b, b.mul(bounded, 2.0))
    far = b.add(b.div(b.number(-2.0, x), b.add(times_power(b, p, t), 1.0)), 1.0)
    # copysign last: it also keeps the sign of zero.
    return b.intrinsic("copysign", b.select(b.compare("ult", size, 0.625), near, far), x)


def erf(b: Builder, x: Value) -> Value:
    size = b.intrinsic("fabs", x)
    near = b.fma(b.polynomial(square(b, x), ERF_SMALL), x, x)
    # A NaN stays in t, and so in the result.
    t = at_most(b, size, ERF_END)
    y = b.mul(b.polynomial(b.sub(t, ERF_MIDDLE), ERF_LARGE), b.neg(t))
    n, exponent = whole_part(b, y, 1.0)
    r = b.sub(y, n)
    far = b.sub(b.number(1.0, x), times_power(b, b.fma(b.polynomial(r, EXP2_P), r, 1.0), exponent))
    return b.select(b.compare("ult", size, 1.0), near, b.intrinsic("copysign", far, x))


# Helpers of float32 functions that are computed in double precision.


def widened(b: Builder, x: Value) -> Value:
    return b.convert("fpext", x, "double")


def narrowed(b: Builder, x: Value) -> Value:
    return b.convert("fptrunc", x, "float")


def in_parts(function: Function) -> Function:
    """The function, of so many lanes at a time that the processor's registers hold them in double precision."""

    def parts(b: Builder, x: Value) -> Value:
        return b.by_parts(min(x.lanes, 32 if b.avx512 else 8), partial(function, b), x)

    return parts


def log_terms(b: Builder, x: Value, polynomial: tuple[float, ...]) -> tuple[Value, Value, Value]:
    """(k, s, p): a logarithm of a positive normal number is k times that of 2, and s * p.

    The polynomial, in s**2, times s is the logarithm of (1 + s) / (1 - s), between sqrt(1/2) and sqrt(2).
    """
    k, m = split(b, x)
    s = b.div(b.sub(m, 1.0), b.add(m, 1.0))
    return k, s, b.polynomial(b.mul(s, s), polynomial)

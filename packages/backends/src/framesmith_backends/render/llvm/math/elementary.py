"""Elementary functions of float32 as straight-line IR, at most 2 ULP off over the whole range.

Polynomials are weighted minimax fits made for these reductions (see tests/render/llvm/test_math.py, which
checks the error of each function against float64). Everything serves scalars and vectors.
"""

from __future__ import annotations

import math
import struct
from functools import partial

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math import powers
from framesmith_backends.render.llvm.math.libm import by_library, instead
from framesmith_backends.render.llvm.math.powers import (
    FLOAT,
    FORMATS,
    has_scalef,
    scale,
    square,
    times_power,
    whole_part,
)

LOG2E = 1.4426950408889634
# ln 2 in two parts, the first with trailing zeros so that n * LN2_HIGH is exact.
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
EXP_Q = (0.49999994, 0.166665167, 0.0416682847, 0.00836925022, 0.00138204684)
# Five terms do for weights of a mean.
WEIGHT_P = (1.0, 1.0, 0.499992311, 0.166671157, 0.0418903306, 0.0083125010)
# One more term where relative accuracy near 0 counts (expm1).
EXPM1_Q = (0.5, 0.166666657, 0.0416664854, 0.00833354052, 0.00139332283, 0.000197677509)
EXP2_P = (0.693147182, 0.240226477, 0.0555035807, 0.00961850397, 0.00133918913, 0.000153288624)
LOG_P = (
    0.333333135, -0.250000089, 0.20002073, -0.166679963, 0.142203271,
    -0.124060318, 0.11883568, -0.116714492, 0.0675095618,
)  # fmt: skip
SINH_P = (0.16666667, 0.0083333105, 0.000198428956, 2.7822132e-06)
TANH_P = (-0.333333313, 0.133332208, -0.0539481826, 0.0217069369, -0.00819016993, 0.00215286738)
ATANH_P = (0.33333292686013594, 0.2000457107510339, 0.14126982113662895, 0.13242664205277213)
ERF_SMALL = (
    0.128379166, -0.376126289, 0.112836242, -0.026855588, 0.0051919478, -0.000804383948, 7.96966342e-05,
)  # fmt: skip
# -log2(erfc(t)) / t on [0.925, 4].
ERF_LARGE = (
    1.62829971, 0.916312873, 0.153295159, -0.0343052968, 0.00526624685, -0.000468483107, 1.64805951e-05,
)  # fmt: skip
INFINITY = math.inf
# Where the reciprocals of numbers count nothing.
LARGE = 2.0**60
# The largest numbers whose exp and exp2 are 0.
EXP_NOTHING, EXP2_NOTHING = -103.97208404541016, -150.0


def clamp(b: Builder, x: Value, low: float, high: float) -> Value:
    """x within [low, high]; NaN stays NaN."""
    return at_most(b, b.select(b.compare("olt", x, low), b.number(low, x), x), high)


def at_most(b: Builder, x: Value, high: float) -> Value:
    return b.select(b.compare("ogt", x, high), b.number(high, x), x)


def is_negative(b: Builder, x: Value) -> Value:
    """Whether the sign is set, which that of NaN may be, too."""
    kind = FORMATS[x.kind].bits
    return b.compare("slt", b.bits(x, kind), 0)


def positive_part(b: Builder, x: Value) -> Value:
    """x, or -0.0 where it is negative; NaN stays NaN."""
    zero = b.number(-0.0, x)
    return b.select(b.compare("ogt", zero, x), zero, x)


def reduced_exponent(b: Builder, x: Value, more: int = 0) -> tuple[Value, Value, Value]:
    """(n, t, r) with x = n ln 2 + r and |r| <= ln(2)/2; t holds n + more as in `whole_part`."""
    n, t = whole_part(b, x, LOG2E, more)
    r = b.fma(n, -LN2_HIGH, x)
    return n, t, b.fma(n, -LN2_LOW, r)


def exp_rest(b: Builder, r: Value, tail: Value | None = None) -> Value:
    """e**r - 1 for |r| <= ln(2)/2; given a tail, the same less r, and with the tail added."""
    squared = b.fma(r, r, FLOAT.step)  # no subnormal, nor any prod of a small number with the result
    return b.fma(b.polynomial(r, EXP_Q), squared, r if tail is None else tail)


def exp(b: Builder, x: Value) -> Value:
    x, kept = bounded(b, x, EXP_NOTHING, math.log(2.0), 89.0)
    n, t, r = reduced_exponent(b, x, more=FLOAT.bias - 1)
    return powers.scale_either_way(b, b.add(exp_rest(b, r), 1.0), n, t, kept)


def bounded(b: Builder, x: Value, nothing: float, unit: float, end: float) -> tuple[Value, Value]:
    """(x, whether its power is not 0), but where it is, what `scale_either_way` needs then; and at most `end`."""
    kept = b.compare("ugt", x, nothing)
    if has_scalef(b, x):  # any number does in lanes that are masked
        return clamp(b, x, nothing, end), kept
    return at_most(b, b.select(kept, x, b.number(FORMATS[x.kind].nothing(True) * unit, x)), end), kept


def weight(b: Builder, x: Value) -> Value:
    """exp of x <= 0, by less than 2e-7 off; that is more than a rounding of what is small. Zero from -87 or -104 on."""
    lowest = -104.5 if has_scalef(b, x) else -87.0
    clamped = b.select(b.compare("olt", x, lowest), b.number(lowest, x), x)
    n, t = whole_part(b, clamped, LOG2E)
    p = b.polynomial(b.fma(n, -math.log(2.0), clamped), WEIGHT_P)
    if lowest < -100:
        return powers.scalef(b, p, n, b.compare("ugt", x, EXP_NOTHING))
    power = b.select(b.compare("olt", x, lowest), b.number(0.0, x), times_power(b, p, t))
    return b.select(b.compare("uno", x, 0.0), x, power)


def exp2(b: Builder, x: Value) -> Value:
    x, kept = bounded(b, x, EXP2_NOTHING, 1.0, 129.0)
    n, t = whole_part(b, x, 1.0, FLOAT.bias - 1)
    r = b.sub(x, n)
    return powers.scale_either_way(b, b.fma(b.polynomial(r, EXP2_P), r, 1.0), n, t, kept)


def with_sign(b: Builder, result: Value, x: Value) -> Value:
    """The result, which has the sign of x or is 0, with that sign."""
    kind = FORMATS[x.kind].bits
    sign = b.binary("and", b.bits(x, kind), -1 << (int(kind[1:]) - 1))
    return b.bits(b.binary("or", b.bits(result, kind), sign), x.kind)


def expm1(b: Builder, x: Value) -> Value:
    n, t, r = reduced_exponent(b, clamp(b, x, -20.0, 89.0))
    p = b.fma(b.polynomial(r, EXPM1_Q), powers.approximate_square(b, r), r)
    # 2 * (s p + (s - 1/2)) with s = 2**(n-1), which stays finite for n = 128.
    s, near = powers.power_of_two(b, t, -1), b.compare("oeq", n, 0.0)
    half = b.fma(s, p, b.sub(s, b.select(near, b.number(0.0, s), b.number(0.5, s))))
    return with_sign(b, b.select(near, p, b.mul(half, 2.0)), x)


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e) or e / (1 + e), with e = exp(-|x|): the small results are accurate down to the subnormals."""
    positive = b.compare("oge", x, 0.0)
    y, kept = falling(b, x, positive, EXP_NOTHING, math.log(2.0))
    n, t = whole_part(b, y, LOG2E)
    # The part of r that rounding loses is added back.
    head, low = b.fma(n, -LN2_HIGH, y), b.mul(n, LN2_LOW)
    r = b.sub(head, low)
    tail = b.sub(b.sub(head, r), low)
    e = scale(b, b.add(b.add(r, exp_rest(b, r, tail)), 1.0), t, kept=kept)
    return over_one_plus(b, b.select(positive, b.number(1.0, x), e), e)


def falling(b: Builder, x: Value, positive: Value, nothing: float, unit: float) -> tuple[Value, Value | None]:
    """(-|x|, whether e**-|x| is kept), for `scale`; it is not where it is 0, or for positive x nothing beside 1.

    There -|x| is bounded, or what `scale` takes for minus infinity.
    """
    y = b.neg(b.intrinsic("fabs", x))
    end = b.select(positive, b.number(-40.0, x), b.number(nothing, x))
    kept = b.compare("ugt", y, end)
    if has_scalef(b, x):
        return b.select(b.compare("olt", y, nothing), b.number(nothing, y), y), kept
    return b.select(kept, y, b.number(FORMATS[x.kind].nothing(False) * unit, y)), None


def bounded_exponent(b: Builder, t: Value) -> Value:
    """t, or where it is less, that of a power which counts nothing beside 1, not even 2**10 times as large."""
    least = FLOAT.rounding - 45.0
    return b.select(b.compare("olt", t, least), b.number(least, t), t)


def split_normal(b: Builder, x: Value, extra: Value | None = None) -> tuple[Value, Value]:
    """(k, m) as floats, x = m * 2**(k + extra) with m in [sqrt(1/2), sqrt(2)), for positive normal x."""
    raw = b.add(b.bits(x, "i32"), 0x3F800000 - 0x3F3504F3)
    k = b.sub(b.binary("lshr", raw, 23), 127)
    if extra is not None:
        k = b.sub(k, extra)
    m = b.bits(b.add(b.binary("and", raw, 0x7FFFFF), 0x3F3504F3), "float")
    return b.convert("sitofp", k, "float"), m


def split(b: Builder, x: Value) -> tuple[Value, Value]:
    """(k, m) as floats, x = m * 2**k with m in [sqrt(1/2), sqrt(2)), for positive finite x, subnormal too."""
    small = b.compare("olt", x, 1.1754943508222875e-38)
    scaled = b.select(small, b.mul(x, 8388608.0), x)
    return split_normal(b, scaled, b.select(small, b.number(23, x, "i32"), b.number(0, x, "i32")))


def log_parts(b: Builder, f: Value) -> tuple[Value, Value]:
    """log(1 + f) = f + second, for 1 + f in [sqrt(1/2), sqrt(2))."""
    z = b.mul(f, f)
    tail = b.mul(b.mul(b.polynomial(f, LOG_P), f), z)
    return f, b.fma(z, -0.5, tail)


def log_range(b: Builder, x: Value, result: Value, at: float = 0.0) -> Value:
    """The values of a logarithm at infinity, its pole, below that, and at NaN."""
    result = b.select(b.compare("oeq", x, INFINITY), x, result)
    result = b.select(b.compare("ult", x, at), b.number(math.nan, x), result)
    return b.select(b.compare("oeq", x, at), b.number(-INFINITY, x), result)


def log(b: Builder, x: Value) -> Value:
    k, m = split(b, x)
    f, tail = log_parts(b, b.sub(m, 1.0))
    tail = b.fma(k, LN2_LOW, tail)
    return log_range(b, x, b.fma(k, LN2_HIGH, b.add(f, tail)))


def log1p(b: Builder, x: Value) -> Value:
    u = b.add(x, 1.0)
    k, m = split(b, u)
    # What rounding 1 + x lost, relative to 1 + x; nothing that counts for large x.
    big = b.compare("ogt", x, 1.0)
    above = b.sub(b.number(1.0, x), b.sub(u, x))
    lost = b.select(big, above, b.sub(x, b.sub(u, 1.0)))
    correction = b.div(lost, at_most(b, u, LARGE))
    # Of numbers that are their own logarithms nothing is computed.
    counts = b.compare("ogt", b.intrinsic("fabs", x), 2.0**-26)
    whole = b.binary("and", b.compare("oeq", k, 0.0), counts)
    f, tail = log_parts(b, b.select(whole, x, b.sub(m, 1.0)))
    tail = b.add(b.fma(k, LN2_LOW, tail), b.select(whole, b.number(0.0, x), correction))
    return b.select(counts, log_range(b, x, b.fma(k, LN2_HIGH, b.add(f, tail)), at=-1.0), x)


def _log_in_base(b: Builder, x: Value, factor: float, unit_high: float, unit_low: float) -> Value:
    """factor * log(m) + k * (unit_high + unit_low), with the rounding error of the first term."""
    k, m = split(b, x)
    f, tail = log_parts(b, b.sub(m, 1.0))
    high = rounded(factor)
    head = b.mul(f, high)
    rest = b.fma(f, factor - high, b.fma(f, high, b.neg(head)))
    rest = b.fma(k, unit_low, b.fma(tail, high, rest))
    return log_range(b, x, b.fma(k, unit_high, b.add(head, rest)))


def rounded(value: float) -> float:
    """The float32 nearest the number."""
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


LOG10_2_HIGH = 0.30102539062
log2 = partial(_log_in_base, factor=LOG2E, unit_high=1.0, unit_low=0.0)
log10 = partial(
    _log_in_base, factor=0.4342944819032518, unit_high=LOG10_2_HIGH, unit_low=math.log10(2.0) - LOG10_2_HIGH
)


def reciprocal(b: Builder, d: Value) -> Value:
    """1 / d within about 1 ULP, for finite d in a small range: the processor's estimate, refined."""
    return b.emit(f"fdiv arcp {d.type} {b.number(1.0, d).text}, {d.text}", d.kind, d.lanes)


def quotient(b: Builder, a: Value, d: Value) -> Value:
    """a / d almost correctly rounded, for finite a and d in a small range."""
    inverse = reciprocal(b, d)
    q = b.mul(a, inverse)
    return b.fma(b.fma(b.neg(q), d, a), inverse, q)


def over_one_plus(b: Builder, a: Value, e: Value) -> Value:
    """a / (1 + e) almost correctly rounded, for finite a and e in [0, 1]."""
    inverse = reciprocal(b, b.add(e, 1.0))
    q = b.mul(a, inverse)
    # a - q is exact, so that nothing is lost of 1 + e. An e that is nothing beside 1 loses nothing.
    e = powers.or_zero(b, b.compare("ugt", e, FORMATS[e.kind].step), e)
    return b.fma(b.fma(b.neg(q), e, b.sub(a, q)), inverse, q)


def tanh(b: Builder, x: Value) -> Value:
    size = b.intrinsic("fabs", x)
    z = square(b, x)
    near = b.fma(b.mul(b.polynomial(z, TANH_P), z), x, x)
    # Beyond 10, tanh is 1 to the last bit.
    bounded = at_most(b, size, 10.0)
    _, t, r = reduced_exponent(b, b.mul(bounded, 2.0))
    e = times_power(b, b.add(exp_rest(b, r), 1.0), t)
    far = b.fma(reciprocal(b, b.add(e, 1.0)), -2.0, 1.0)
    # copysign last: it also keeps the sign of zero.
    return b.intrinsic("copysign", b.select(b.compare("ult", size, 0.625), near, far), x)


def _half_exp(b: Builder, size: Value) -> Value:
    """e**size / 2, which is finite wherever sinh and cosh are."""
    bounded = at_most(b, size, 90.0)
    _, t, r = reduced_exponent(b, bounded)
    return scale(b, b.add(exp_rest(b, r), 1.0), t, more=-1, last=64)


def _half_inverse(b: Builder, half: Value) -> Value:
    """e**-size / 2, or a number as little beside e**size / 2, given the latter."""
    return b.div(b.number(0.25, half), b.select(b.compare("ogt", half, 2.0**40), b.number(2.0**40, half), half))


def sinh(b: Builder, x: Value) -> Value:
    size = b.intrinsic("fabs", x)
    z = square(b, size)
    near = b.fma(b.mul(b.polynomial(z, SINH_P), z), size, size)
    half = _half_exp(b, size)
    far = b.sub(half, _half_inverse(b, half))
    return b.intrinsic("copysign", b.select(b.compare("olt", size, 1.0), near, far), x)


def cosh(b: Builder, x: Value) -> Value:
    half = _half_exp(b, b.intrinsic("fabs", x))
    return b.add(half, _half_inverse(b, half))


# The difference of two floats' bits where the larger is about 2**0.74 times the other.
ATANH_STEP = int(0.74 * 2**23)


def atanh(b: Builder, x: Value) -> Value:
    """k ln(2)/2 + atanh(s), with (1 + t) / (1 - t) = 2**k (1 + s) / (1 - s) for t = |x|; s = t where k = 0."""
    t = b.intrinsic("fabs", x)
    above, below = b.add(t, 1.0), b.sub(b.number(1.0, t), t)
    steps = b.sub(b.bits(above, "i32"), b.bits(below, "i32"))
    k = b.binary("and", b.add(steps, (1 << 23) - ATANH_STEP), -(1 << 23))  # in the exponent's bits
    power = b.bits(b.add(k, 0x3F800000), "float")
    # 1 + t - 2**k (1 - t) over 1 + t + 2**k (1 - t); 1 - t is exact from 1/2 on, the factors of t up to there.
    plus, minus = b.add(power, 1.0), b.sub(b.number(1.0, t), power)
    half = b.compare("olt", t, 0.5)
    top = b.select(half, b.fma(t, plus, minus), b.fma(b.neg(power), below, above))
    bottom = b.select(half, b.fma(t, minus, plus), b.fma(power, below, above))
    s = b.div(top, bottom)
    z = square(b, s)
    near = b.fma(b.mul(b.polynomial(z, ATANH_P), z), s, s)
    whole = b.convert("sitofp", k, "float")
    result = b.fma(whole, LN2_HIGH * 2.0**-24, b.fma(whole, LN2_LOW * 2.0**-24, near))
    result = b.select(b.compare("oeq", t, 1.0), b.number(INFINITY, t), result)
    result = b.select(b.compare("ugt", t, 1.0), b.number(math.nan, t), result)
    return b.intrinsic("copysign", result, x)


# From here on floats do not distinguish neighbouring quotients.
LARGEST_QUOTIENT = 2.0**22


def fmod(b: Builder, x: Value, y: Value) -> Value:
    """x - trunc(x / y) * y, exactly."""
    x, y = b.same(x, y)
    size, divisor = b.intrinsic("fabs", x), b.intrinsic("fabs", y)
    below = b.compare("olt", size, divisor)
    q = b.intrinsic("trunc", b.div(b.select(below, b.number(0.0, x), size), divisor))
    # The multiplication is rounded by the sum alone, and the rest needs no more digits than the operands have.
    rest = b.fma(b.neg(q), divisor, size)
    rest = b.select(b.compare("olt", rest, 0.0), b.add(rest, divisor), rest)
    result = b.intrinsic("copysign", b.select(below, size, rest), x)
    finite = b.binary("and", b.compare("olt", size, INFINITY), b.compare("ogt", divisor, 0.0))
    return by_library(b, b.binary("and", finite, b.compare("oge", q, LARGEST_QUOTIENT)), "fmodf", (x, y), result)


def floordiv(b: Builder, x: Value, y: Value) -> Value:
    """Python's floor division. The floor of the rounded quotient is too large by one where the rest has y's other sign.

    Eager mode rounds quotients that floats do not distinguish in a way of its own.
    """
    x, y = b.same(x, y)
    quotient = b.div(x, y)
    whole = b.intrinsic("floor", quotient)
    # Exact, or of the right sign: a whole quotient's rest needs no more digits than the operands have.
    rest = b.fma(b.neg(whole), y, x)
    sign = b.binary("and", b.bits(y, "i32"), -(1 << 31))
    along = b.bits(b.binary("xor", b.bits(rest, "i32"), sign), "float")
    result = b.select(b.compare("olt", along, 0.0), b.sub(whole, 1.0), whole)
    # The rest of an infinite y is NaN.
    unknown = b.compare("uge", b.fma(rest, 0.0, b.intrinsic("fabs", quotient)), LARGEST_QUOTIENT)
    return instead(b, unknown, result, lambda: _floor_by_rest(b, x, y, quotient))


def _floor_by_rest(b: Builder, x: Value, y: Value, quotient: Value) -> Value:
    """The same for all numbers, as CPython and ATen compute it, given the quotient."""
    zero = b.number(0.0, x)
    rest = fmod(b, x, y)
    exact = b.div(b.sub(x, rest), y)
    other_sign = b.binary("xor", b.compare("olt", y, zero), b.compare("olt", rest, zero))
    off = b.binary("and", b.compare("une", rest, zero), other_sign)
    exact = b.select(off, b.sub(exact, 1.0), exact)
    floored = b.intrinsic("floor", exact)
    floored = b.select(b.compare("ogt", b.sub(exact, floored), 0.5), b.add(floored, 1.0), floored)
    signed = b.intrinsic("copysign", zero, quotient)
    result = b.select(b.compare("oeq", exact, zero), signed, floored)
    return b.select(b.compare("oeq", y, zero), quotient, result)


def erf(b: Builder, x: Value) -> Value:
    size = b.intrinsic("fabs", x)
    near = b.fma(b.polynomial(square(b, x), ERF_SMALL), x, x)
    # A NaN stays in t, and so in the result.
    t = at_most(b, size, 4.0)
    y = b.mul(b.polynomial(t, ERF_LARGE), b.neg(t))
    n, exponent = whole_part(b, y, 1.0)
    r = b.sub(y, n)
    p = b.fma(b.polynomial(r, EXP2_P), r, 1.0)
    far = b.sub(b.number(1.0, x), times_power(b, p, exponent))
    return b.select(b.compare("ult", size, 0.927734375), near, b.intrinsic("copysign", far, x))


def rsqrt(b: Builder, x: Value) -> Value:
    return b.div(b.number(1.0, x), b.intrinsic("sqrt", x))

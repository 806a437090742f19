"""Activations and their derivatives in float32 as straight-line IR, accurate in the tails too.

Each is written over t = |x| and powers e**-y with y >= 0, which cannot overflow, and has few roundings one on top of
another. tests/render/llvm/test_activations.py bounds the errors.

Note [Scaled last]: x * sigmoid(x) has normal results where sigmoid(x) is subnormal and has lost digits. So 2**n is kept
apart from e**-y = (1 + rest) * 2**n until everything else is multiplied in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math import elementary, normal_tail
from framesmith_backends.render.llvm.math.elementary import (
    INFINITY,
    LN2_HIGH,
    LN2_LOW,
    LOG2E,
    is_negative,
    positive_part,
    quotient,
    reciprocal,
)  # fmt: skip
from framesmith_backends.render.llvm.math.powers import FLOAT, or_zero, scale, square, times_power, whole_part

# Results are 0 in float32, less than half of its smallest subnormal, from minus these on; erfc's from its own.
GELU_END, DGELU_END, ERFC_END = 14.35606861114502, 14.541349411010742, 10.054195404052734
GELU_TANH_END, DGELU_TANH_END, LOGISTIC_END, DLOGISTIC_END = (
    10.770868301391602, 10.894538879394531, 108.66030883789062, 108.6509780883789,
)  # fmt: skip
# What lacks of x, of 1 and of 2 counts nothing from these on.
GELU_NOTHING, ERFC_NOTHING = 6.5, 4.2
# Below this, sizes do not count beside 1.
LEAST_SIZE = 2.0**-60
# From here on both parts of a logistic function are as there.
FAR = 120.0

# Phi being the normal distribution and G(t) = (1 - Phi(t)) * exp(t*t/2): G(t) = D(t) / (1 + t*(BELL_NORM*D(t) + N(t))).
BELL_NORM = math.sqrt(2.0 * math.pi)
# D is 2**64 times as large, and so is what it multiplies t in: t may be small.
LARGER = 64
GELU_N = (0.45830196, 0.11479233, 0.012051295, 1.2044253e-06)
GELU_D = tuple(math.ldexp(c, LARGER) for c in (0.5, 0.4568654, 0.19716075, 0.045371126, 0.004829719))
# The same in t / sqrt(2).
ERFC_N, ERFC_NORM = (0.5930901, 0.2066134, 0.028494233, 3.148055e-05), 3.5448647
ERFC_D = (0.5, 0.6185714, 0.36508352, 0.114244424, 0.016312178)
# The root of gelu' as -(high + low); gelu'(-t) * exp(t*t/2) = (root - t) * (1 / BELL_NORM + N(t) / D(t)).
DGELU_ROOT = (0.7517915368080139, -1.211444988769017e-08)
DGELU_N = (0.26613572, 0.19384162, 0.06047961, 0.0076064505, 6.613121e-08)
DGELU_D = (1.0, 1.3921283, 0.7847228, 0.21611592, 0.025371946)

# gelu_tanh(x) = x * sigmoid(x * (A + B*x*x)). A's high part has trailing zeros, so that A - (A + B*t*t) is exact.
TANH_A, TANH_B = (1.5957698822021484, -7.605964177257403e-07), (0.07135481387376785, 2.3988324659995897e-09)
# The root t of mish'(-t), and e**-t there.
DMISH_ROOT, DMISH_POWER = (1.1924312114715576, 3.0439375464652585e-09), 0.30348253528152892882143674354
# What multiplies expm1(root - t) in the numerator of mish'(-t), by powers of itself.
DMISH_B = (1.19403393896393892572563391772, 0.452260322911128213626147017438, 0.027951242009170136450866461404)


@dataclass(frozen=True, slots=True)
class Power:
    """e**y = (1 + rest) * 2**n; `shifted` holds n in its low bits, as `whole_part` leaves it."""

    n: Value
    shifted: Value
    rest: Value

    def value(self, b: Builder) -> Value:
        """The power where it counts beside 1, else a number as small as that."""
        return times_power(b, b.add(self.rest, 1.0), elementary.bounded_exponent(b, self.shifted))

    def times(self, b: Builder, x: Value) -> Value:
        """x * (1 + rest), still to be scaled."""
        return b.fma(x, self.rest, x)

    def times_sum(self, b: Builder, x: Value, low: Value) -> Value:
        """(x + low) * (1 + rest), rounded about once, where low is as small as a rounding error of x."""
        return b.add(x, b.fma(x, self.rest, b.fma(low, self.rest, low)))


def _power(b: Builder, y: Value, low: tuple[Value, float] | None = None) -> Power:
    """e**y, or e**(y + low[0] * low[1]), y being at most about 120."""
    n, shifted = whole_part(b, y, LOG2E)
    r = b.fma(n, -LN2_LOW, b.fma(n, -LN2_HIGH, y))
    if low is not None:
        r = b.fma(low[0], low[1], r)
    return Power(n, shifted, elementary.exp_rest(b, r))


def _size(b: Builder, x: Value, end: float) -> Value:
    """|x|, but at most `end`; NaN stays NaN."""
    return elementary.at_most(b, b.intrinsic("fabs", x), end)


def _inside(b: Builder, x: Value, negative: Value, ends: tuple[float, float]) -> tuple[Value, Value]:
    """(|x|, or 0 from the first end on for negative x, from the second for positive, whether it is |x|); NaN stays."""
    size = b.intrinsic("fabs", x)
    end = b.select(negative, b.number(ends[0], x), b.number(ends[1], x))
    inside = b.compare("ugt", end, size)
    return or_zero(b, inside, size), inside


def _counting(b: Builder, size: Value) -> Value:
    """The size where it counts beside 1, else one that does not either."""
    return b.select(b.compare("olt", size, LEAST_SIZE), b.number(LEAST_SIZE, size), size)


def _scaled_where(b: Builder, condition: Value, value: Value, power: Power, kept: Value | None = None) -> Value:
    """value * 2**n where the condition holds, else the value; 0 where it is not kept."""
    t = b.select(condition, power.shifted, b.number(FLOAT.rounding, value))
    return scale(b, value, t, kept=kept)


def _with_limit(b: Builder, x: Value, size: Value, end: float) -> Value:
    """The size with the sign of x; x itself from `end` on; NaN at minus infinity, as eager mode's -inf * 0."""
    result = b.select(b.compare("oge", x, end), x, b.intrinsic("copysign", size, x))
    return b.select(b.compare("oeq", x, -INFINITY), b.number(math.nan, x), result)


def _with_limits(b: Builder, x: Value, result: Value) -> Value:
    """NaN where x is infinite, as eager mode's infinity times zero in a derivative."""
    return b.fma(x, 0.0, result)


def _bell(b: Builder, t: Value) -> Power:
    """exp(-t*t/2), the square with its rounding error."""
    squared = square(b, t)
    lost = b.fma(t, t, b.neg(squared))
    return _power(b, b.mul(squared, -0.5), (lost, -0.5))


def _has_lookups(b: Builder, x: Value) -> bool:
    return b.avx512 and x.lanes % normal_tail.REGISTER_LANES == 0


def _counts(b: Builder, x: Value, end: float) -> Value:
    """Whether the normal distribution's tail counts at x, or x is NaN."""
    return b.binary("and", b.compare("ugt", x, -end), b.compare("ult", x, GELU_NOTHING))


def gelu(b: Builder, x: Value) -> Value:
    """NaN at both infinities."""
    x = b.fma(x, 0.0, x)
    if _has_lookups(b, x):
        return b.sub(positive_part(b, x), normal_tail.lacking(b, b.intrinsic("fabs", x), _counts(b, x, GELU_END)))
    t, _ = _inside(b, x, is_negative(b, x), (GELU_END, GELU_NOTHING))
    # D is on both sides of the fraction: for large t its error cancels.
    d = b.polynomial(t, GELU_D)
    bottom = b.fma(b.fma(d, math.ldexp(BELL_NORM, -LARGER), b.polynomial(t, GELU_N)), t, 1.0)
    top = b.mul(t, d)
    inverse = reciprocal(b, bottom)
    ratio = b.mul(top, inverse)
    # What is lost: by the ratio, and by rounding the numerator.
    rest = b.add(b.fma(b.neg(ratio), bottom, top), b.fma(t, d, b.neg(top)))
    bell = _bell(b, t)
    prod = bell.times_sum(b, ratio, b.mul(rest, inverse))
    lacking = scale(b, prod, bell.shifted, more=-LARGER, last=-LARGER - 32)
    return b.sub(positive_part(b, x), lacking)


def _times_bell(b: Builder, high: Value, low: Value, t: Value, kept: Value) -> Value:
    """2 * (high + low) * exp(-t*t), where low is as small as a rounding error of high: nothing is rounded twice."""
    squared = square(b, t)
    n, shifted = whole_part(b, squared, -LOG2E)
    head = b.fma(n, -LN2_HIGH, b.neg(squared))
    tail = b.fma(n, -LN2_LOW, b.neg(b.fma(t, t, b.neg(squared))))
    r = b.add(head, tail)
    rest = elementary.exp_rest(b, r, b.add(b.sub(head, r), tail))
    prod = b.add(high, b.fma(high, r, b.fma(high, rest, b.fma(low, r, low))))
    return scale(b, prod, shifted, more=1, kept=kept)


def erfc(b: Builder, x: Value) -> Value:
    negative = is_negative(b, x)
    t, inside = _inside(b, x, negative, (ERFC_NOTHING, ERFC_END))
    t = _counting(b, t)
    d, n = b.polynomial(t, ERFC_D), b.polynomial(t, ERFC_N)
    scaled = b.mul(d, ERFC_NORM)
    slope = b.add(scaled, n)
    bottom = b.fma(slope, t, 1.0)
    inverse = reciprocal(b, bottom)
    ratio = b.mul(d, inverse)
    # What is lost by rounding: the numerator (which is in the denominator, too), the denominator, and the ratio.
    of_d = b.fma(b.polynomial(t, ERFC_D[1:]), t, b.sub(b.number(ERFC_D[0], t), d))
    of_scaled = b.fma(of_d, ERFC_NORM, b.fma(d, ERFC_NORM, b.neg(scaled)))
    of_slope = b.add(b.add(b.sub(scaled, slope), n), of_scaled)
    of_bottom = b.fma(of_slope, t, b.fma(slope, t, b.sub(b.number(1.0, t), bottom)))
    rest = b.fma(b.neg(ratio), of_bottom, b.add(b.fma(b.neg(ratio), bottom, d), of_d))
    far = _times_bell(b, ratio, b.mul(rest, inverse), t, inside)
    return b.select(negative, b.sub(b.number(2.0, x), far), far)


def dgelu(b: Builder, x: Value) -> Value:
    negative = is_negative(b, x)
    if _has_lookups(b, x):
        below = normal_tail.slope(b, b.intrinsic("fabs", x), _counts(b, x, DGELU_END))
    else:
        below = _slope_below(b, *_inside(b, x, negative, (DGELU_END, GELU_NOTHING)))
    result = b.select(negative, below, b.sub(b.number(1.0, x), below))
    return _with_limits(b, x, result)


def _slope_below(b: Builder, t: Value, kept: Value) -> Value:
    """The derivative at -t; 0 where it is not kept."""
    ratio = quotient(b, b.polynomial(t, DGELU_N), b.polynomial(t, DGELU_D))
    factor = b.add(ratio, 1.0 / BELL_NORM)
    lost = b.sub(ratio, b.sub(factor, 1.0 / BELL_NORM))
    distance = b.add(b.sub(b.number(DGELU_ROOT[0], t), t), DGELU_ROOT[1])
    prod = b.mul(distance, factor)
    rest = b.fma(distance, lost, b.fma(distance, factor, b.neg(prod)))
    bell = _bell(b, t)
    return scale(b, bell.times_sum(b, prod, rest), bell.shifted, kept=kept)


def silu(b: Builder, x: Value) -> Value:
    """x / (1 + e**-x), where for negative x both parts of the sum are 2**-32 times as large: it does not overflow.

    But where the result is 0: there it is infinite.
    """
    y = b.neg(x)
    y = b.select(b.compare("olt", y, -25.0), b.number(-25.0, y), y)
    y = b.select(b.compare("oge", y, LOGISTIC_END), b.number(FAR, y), y)
    power = _power(b, y)
    negative = is_negative(b, x)
    shifted = b.select(negative, b.sub(power.shifted, 32.0), power.shifted)
    e = scale(b, b.add(power.rest, 1.0), shifted, last=FLOAT.reach)
    unit = b.select(negative, b.number(2.0**-32, x), b.number(1.0, x))
    return b.mul(b.div(x, b.add(e, unit)), unit)


def _tanh_exponent(b: Builder, t: Value) -> tuple[Value, Value]:
    """t * (A + B*t*t) in two parts, for a t that counts beside 1."""
    squared = square(b, t)
    lost = b.fma(t, t, b.neg(squared))
    slope = b.fma(squared, TANH_B[0], TANH_A[0])
    low = b.fma(squared, TANH_B[0], b.sub(b.number(TANH_A[0], t), slope))
    low = b.add(low, b.fma(lost, TANH_B[0], b.fma(squared, TANH_B[1], TANH_A[1])))
    high = b.mul(t, slope)
    return high, b.fma(t, low, b.fma(t, slope, b.neg(high)))


def gelu_tanh(b: Builder, x: Value) -> Value:
    """NaN at minus infinity."""
    negative = is_negative(b, x)
    t, _ = _inside(b, x, negative, (GELU_TANH_END, GELU_TANH_END))
    high, low = _tanh_exponent(b, _counting(b, t))
    power = _power(b, b.neg(high), (low, -1.0))
    # 2**64 times as large: what division loses of it is to be normal.
    larger = b.mul(t, 2.0**LARGER)
    top = b.select(negative, power.times(b, larger), larger)
    result = elementary.over_one_plus(b, top, power.value(b))
    shifted = b.select(negative, power.shifted, b.number(FLOAT.rounding, t))
    result = scale(b, result, shifted, more=-LARGER, last=-LARGER - 32)
    return _with_limit(b, x, result, GELU_TANH_END)


def _sigmoid_slope(b: Builder, x: Value, along: Value, power: Power, factor: Value, end: float) -> Value:
    """The derivative of x * sigmoid(z) for an odd z, given along = |x| * dz/dx and the power exp(-|z|).

    With s = 1 / (1 + e): s * (1 + along*e*s) for positive x, e * s * (1 - along*s) for negative x. NaN where `factor`,
    which eager's formula multiplies by what vanishes there, is infinite; 0 up to `end`.
    """
    negative = is_negative(b, x)
    e = power.value(b)
    guess = reciprocal(b, b.add(e, 1.0))
    correction = b.mul(b.fma(b.neg(guess), e, b.sub(b.number(1.0, e), guess)), guess)
    along = b.select(negative, b.neg(along), b.mul(along, e))
    slope = b.fma(along, correction, b.fma(along, guess, 1.0))
    sigmoid = b.add(guess, correction)
    result = b.mul(b.select(negative, power.times(b, sigmoid), sigmoid), slope)
    return _with_limits(b, factor, _scaled_where(b, negative, result, power, b.compare("ugt", x, end)))


def dsilu(b: Builder, x: Value) -> Value:
    t = _counting(b, _size(b, x, FAR))
    return _sigmoid_slope(b, x, t, _power(b, b.neg(t)), x, -DLOGISTIC_END)


def dgelu_tanh(b: Builder, x: Value) -> Value:
    t = _counting(b, _size(b, x, DGELU_TANH_END))
    high, low = _tanh_exponent(b, t)
    along = b.mul(t, b.fma(square(b, t), 3 * TANH_B[0], sum(TANH_A)))
    return _sigmoid_slope(b, x, along, _power(b, b.neg(high), (low, -1.0)), square(b, x), -DGELU_TANH_END)


def _mish_divisor(b: Builder, e: Value, negative: Value) -> Value:
    """2 + 2*e + e*e for negative x, 1 + 2*e + 2*e*e for positive."""
    one, two = b.number(1.0, e), b.number(2.0, e)
    return b.fma(e, b.fma(e, b.select(negative, one, two), two), b.select(negative, two, one))


def mish(b: Builder, x: Value) -> Value:
    negative = is_negative(b, x)
    t, _ = _inside(b, x, negative, (LOGISTIC_END, LOGISTIC_END))
    power = _power(b, b.neg(t))
    e = power.value(b)
    top = b.select(negative, power.times(b, t), t)
    # tanh(softplus(x)), without the power for negative x, is 1 - lacking.
    lacking = quotient(b, b.fma(e, e, b.select(negative, e, b.mul(e, e))), _mish_divisor(b, e, negative))
    result = b.fma(b.neg(top), lacking, top)
    return _with_limit(b, x, _scaled_where(b, negative, result, power), LOGISTIC_END)


def dmish(b: Builder, x: Value) -> Value:
    t = _size(b, x, FAR)
    high = b.sub(t, DMISH_ROOT[0])
    low = b.sub(b.sub(b.sub(t, high), DMISH_ROOT[0]), DMISH_ROOT[1])
    power = _power(b, b.neg(high), (low, -1.0))
    relative = power.value(b)
    e = b.mul(relative, DMISH_POWER)
    negative = is_negative(b, x)
    divisor = _mish_divisor(b, e, negative)
    less = b.select(b.compare("oeq", power.n, 0.0), power.rest, b.sub(relative, 1.0))  # with all digits near the root
    step = b.mul(b.add(high, low), -4.0)
    distance = b.fma(less, b.polynomial(less, DMISH_B), b.fma(step, e, step))
    falling = power.times(b, b.mul(distance, DMISH_POWER))
    four = b.fma(t, b.number(4.0, t), 4.0)
    rising = b.fma(e, b.fma(e, b.fma(e, four, b.add(four, 2.0)), 4.0), 1.0)
    top = b.select(negative, falling, rising)
    result = quotient(b, top, b.mul(divisor, divisor))
    return _with_limits(b, x, _scaled_where(b, negative, result, power, b.compare("ugt", x, -DLOGISTIC_END)))

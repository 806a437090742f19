"""Trigonometric functions of float32 and their inverses as straight-line IR, at most 2 ULP off.

The polynomials are weighted minimax fits, as those of `math`; tests/render/llvm/test_math.py checks the errors.
"""

from __future__ import annotations

import math

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math.elementary import LARGE, at_most
from framesmith_backends.render.llvm.math.libm import by_library
from framesmith_backends.render.llvm.math.powers import approximate_square, or_zero, square, whole_part

SIN_P = (-0.166666672, 0.0083333794, -0.00019853047, 2.8320992e-06)
COS_P = (0.0416666456, -0.00138873048, 2.44314251e-05)
TAN_P = (
    0.333333492, 0.133326724, 0.0540594384, 0.0212828629, 0.0108373053, 8.45675095e-05, 0.00437992111,
)  # fmt: skip
ATAN_P = (
    -0.333332986, 0.199985296, -0.142640144, 0.109508611, -0.0839920864, 0.0578789152,
    -0.0310936297, 0.0108663626, -0.00178217597,
)  # fmt: skip
ASIN_P = (0.166667521, 0.0749530941, 0.0454691499, 0.0241847783, 0.0421583056)
# 1 / (1 + z) on [0, 1], roughly.
ATAN_SLOPE = (0.998266876, -0.942807198, 0.665510118, -0.221836284)
# pi / 2 in three parts of a float each, and pi in two.
HALF_PI = (1.57079637050628662109375, -4.37113900018624283e-8, -1.71512449515e-15)
PI = (2 * HALF_PI[0], 2 * HALF_PI[1])
# Beyond this the three parts are not enough, and the C library's exact reduction is called.
TRIG_LIMIT = 100000.0


def _reduced_angle(b: Builder, x: Value) -> tuple[Value, Value]:
    """(n, r) with x = n pi/2 + r and |r| <= pi/4, for |x| up to the limit; n is a whole number less its higher bits."""
    n, t = whole_part(b, x, 2.0 / math.pi)
    r = b.fma(n, -HALF_PI[0], x)
    r = b.fma(n, -HALF_PI[1], r)
    r = b.fma(n, -HALF_PI[2], r)
    return b.bits(t, "i32"), r


def _exact_where_large(b: Builder, x: Value, library: str, result: Value) -> Value:
    return by_library(b, b.compare("oge", b.intrinsic("fabs", x), TRIG_LIMIT), library, (x,), result)


def _wave(b: Builder, x: Value, shift: int, library: str) -> Value:
    n, r = _reduced_angle(b, x)
    quadrant = b.add(n, shift)
    z = square(b, r)
    sine = b.fma(b.mul(b.polynomial(z, SIN_P), z), r, r)
    cosine = b.fma(b.mul(b.polynomial(z, COS_P), z), z, b.fma(z, -0.5, 1.0))
    value = b.bits(b.select(_is_odd(b, quadrant), cosine, sine), "i32")
    sign = b.binary("shl", b.binary("and", quadrant, 2), 30)
    return _exact_where_large(b, x, library, b.bits(b.binary("xor", value, sign), "float"))


def _is_odd(b: Builder, n: Value) -> Value:
    return b.compare("ne", b.binary("and", n, 1), 0)


def sin(b: Builder, x: Value) -> Value:
    # sin(-0.0) is -0.0: the polynomial keeps it, since r is x there.
    return b.select(b.compare("oeq", x, 0.0), x, _wave(b, x, 0, "sinf"))


def cos(b: Builder, x: Value) -> Value:
    return _wave(b, x, 1, "cosf")


def tan(b: Builder, x: Value) -> Value:
    n, r = _reduced_angle(b, x)
    z = approximate_square(b, r)
    rest = b.mul(b.mul(b.polynomial(z, TAN_P), z), r)
    tangent = b.add(r, rest)
    odd = _is_odd(b, n)
    # -1 / (r + rest), for the odd quadrants, from the rounded sum and what was lost of it.
    lost = b.add(b.sub(r, tangent), rest)
    inverse = b.div(b.number(-1.0, x), tangent)
    error = b.fma(inverse, lost, b.fma(inverse, tangent, 1.0))
    result = b.select(odd, b.fma(inverse, error, inverse), tangent)
    return b.select(b.compare("oeq", x, 0.0), x, _exact_where_large(b, x, "tanf", result))


def _sum(b: Builder, base: tuple[Value, Value], high: Value, low: Value) -> Value:
    """base + high + low rounded about once, where base is 0 or larger than high, and low is small beside it."""
    total = b.add(base[0], high)
    lost = b.add(b.sub(base[0], total), high)
    return b.add(total, b.add(lost, b.add(low, base[1])))


def _base(b: Builder, choices: tuple[tuple[Value, tuple[float, float]], ...]) -> tuple[Value, Value]:
    """The number, in two parts, whose condition holds; 0 where none does, the last where several do."""
    high = low = b.number(0.0, choices[0][0], "float")
    for condition, parts in choices:
        high = b.select(condition, b.number(parts[0], high), high)
        low = b.select(condition, b.number(parts[1], low), low)
    return high, low


def _atan_rest(b: Builder, t: Value, lost: Value) -> Value:
    """atan(t + lost) - t for 0 <= t <= 1."""
    z = approximate_square(b, t)
    return b.fma(b.mul(b.polynomial(z, ATAN_P), z), t, b.mul(b.polynomial(z, ATAN_SLOPE), lost))


def atan2(b: Builder, y: Value, x: Value) -> Value:
    y, x = b.same(y, x)
    across, along = b.intrinsic("fabs", y), b.intrinsic("fabs", x)
    steep = b.compare("ogt", across, along)
    backward = b.compare("slt", b.bits(x, "i32"), 0)
    top, bottom = b.select(steep, along, across), b.select(steep, across, along)
    # Beside pi or pi/2 nothing that small counts.
    larger = b.mul(top, 2.0**40)
    nothing = b.binary("and", b.binary("or", steep, backward), b.compare("olt", larger, bottom))
    top = b.select(nothing, b.number(0.0, x), top)
    t = b.div(top, bottom)
    t = b.select(b.compare("oeq", top, bottom), b.number(1.0, x), t)  # infinite both, maybe
    t = b.select(b.compare("oeq", bottom, 0.0), top, t)
    # What division loses, where it counts.
    lost = b.div(b.fma(b.neg(t), bottom, top), bottom)
    lost = or_zero(b, b.compare("ogt", larger, bottom), lost)
    rest = _atan_rest(b, t, lost)
    falls = b.binary("xor", steep, backward)
    high, low = (b.select(falls, b.neg(part), part) for part in (t, rest))
    base = _base(b, ((backward, PI), (steep, HALF_PI[:2])))
    return b.intrinsic("copysign", _sum(b, base, high, low), y)


def atan(b: Builder, x: Value) -> Value:
    size = b.intrinsic("fabs", x)
    steep = b.compare("ogt", size, 1.0)
    bottom = b.select(steep, at_most(b, size, LARGE), b.number(1.0, x))
    t = b.div(b.select(steep, b.number(1.0, x), size), bottom)
    # What the reciprocal of a large number loses.
    lost = b.select(steep, b.fma(b.neg(t), bottom, 1.0), b.number(0.0, x))
    rest = _atan_rest(b, t, b.mul(lost, t))
    high, low = (b.select(steep, b.neg(part), part) for part in (t, rest))
    return b.intrinsic("copysign", _sum(b, _base(b, ((steep, HALF_PI[:2]),)), high, low), x)


def _arc(b: Builder, size: Value) -> tuple[Value, Value, Value]:
    """(is near, high, low): asin(size) up to 1/2, and asin(sqrt((1 - size) / 2)) beyond, in two parts."""
    near = b.compare("olt", size, 0.5)
    squared = b.select(near, approximate_square(b, size), b.mul(b.sub(b.number(1.0, size), size), 0.5))
    root = b.intrinsic("sqrt", squared)
    lost = b.mul(b.div(b.fma(b.neg(root), root, squared), root), 0.5)
    lost = b.select(b.compare("ogt", root, 0.0), lost, b.number(0.0, size))
    high = b.select(near, size, root)
    rest = b.mul(b.mul(b.polynomial(squared, ASIN_P), squared), high)
    return near, high, b.add(rest, b.select(near, b.number(0.0, size), lost))


def asin(b: Builder, x: Value) -> Value:
    near, high, low = _arc(b, b.intrinsic("fabs", x))
    high, low = (b.select(near, part, b.mul(part, -2.0)) for part in (high, low))
    base = _base(b, ((b.binary("xor", near, True), HALF_PI[:2]),))
    return b.intrinsic("copysign", _sum(b, base, high, low), x)


def acos(b: Builder, x: Value) -> Value:
    near, high, low = _arc(b, b.intrinsic("fabs", x))
    backward = b.compare("olt", x, 0.0)
    high, low = (b.select(near, part, b.mul(part, 2.0)) for part in (high, low))
    falls = b.binary("xor", near, backward)
    high, low = (b.select(falls, b.neg(part), part) for part in (high, low))
    return _sum(b, _base(b, ((backward, PI), (near, HALF_PI[:2]))), high, low)

"""Functions whose result is rounded to bfloat16, in float32: off by 2**-16 of it, where half of a last place is 2**-9.

(In gelu's tail below -4.6 by 2**-13.) Each is shorter than the function of the same name that is exact to a few units
of float32, and as it on special values. tests/render/llvm/test_approximate.py goes through all numbers of bfloat16.
"""

from __future__ import annotations

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math.elementary import LOG2E, positive_part, reciprocal
from framesmith_backends.render.llvm.math.powers import scale, whole_part

# 2**r on [-1/2, 1/2].
EXP2_P = (0.9999992612914773, 0.6931218138984361, 0.24024744783702526, 0.05591786478445601, 0.009570106886742362)
# log2 of the normal distribution's upper tail on [0, GELU_END], beyond which gelu's lower tail is 0 in bfloat16.
GELU_END = 13.6
GELU_P = (
    -0.9999956729819259, -1.1513207200731135, -0.45814027023805903, -0.054452201499780035, 0.00885589173623553,
    -0.0010610553270948176, 8.860556727499206e-05, -4.818716220730348e-06, 1.521786028409399e-07,
    -2.106676308705673e-09,
)  # fmt: skip
# What gelu lacks of positive x is nothing from here on, and likewise what sigmoid lacks of 1.
GELU_NOTHING, SIGMOID_NOTHING = 6.0, 14.0
# From here on sigmoid of negative x is 0 in bfloat16.
SIGMOID_END = 94.0


def _size(b: Builder, x: Value, negative: Value, end: float, nothing: float) -> Value:
    """|x| up to where the result is as at `end` for negative x, at `nothing` for positive; NaN stays NaN."""
    size = b.intrinsic("fabs", x)
    limit = b.select(negative, b.number(end, x), b.number(nothing, x))
    return b.select(b.compare("ogt", size, limit), limit, size)


def _times_exp2(b: Builder, x: Value, y: Value, kept: Value) -> Value:
    """x * 2**y; 0 where it is not kept."""
    n, t = whole_part(b, y, 1.0)
    return scale(b, b.mul(b.polynomial(b.sub(y, n), EXP2_P), x), t, kept=kept)


def gelu(b: Builder, x: Value) -> Value:
    """NaN at both infinities."""
    x = b.fma(x, 0.0, x)
    negative = b.compare("olt", x, 0.0)
    t = _size(b, x, negative, GELU_END, GELU_NOTHING)
    lacking = _times_exp2(b, t, b.polynomial(t, GELU_P), b.compare("ugt", x, -GELU_END))
    return b.sub(positive_part(b, x), lacking)


def sigmoid(b: Builder, x: Value) -> Value:
    negative = b.compare("olt", x, 0.0)
    size = _size(b, x, negative, SIGMOID_END, SIGMOID_NOTHING)
    n, t = whole_part(b, size, -LOG2E)
    p = b.polynomial(b.fma(size, -LOG2E, b.neg(n)), EXP2_P)
    e = scale(b, p, t, kept=b.compare("ugt", x, -SIGMOID_END))
    inverse = reciprocal(b, b.add(e, 1.0))
    return b.select(negative, b.mul(e, inverse), inverse)

"""Functions the generated Triton kernels call: the device library's, or the interpreter's when they are interpreted."""

from __future__ import annotations

import threading
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from framesmith_backends.render.llvm.math.approximate import GELU_END, GELU_P

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)


def read_one_at_a_time() -> None:
    """Has Triton's compilers, in several threads, read one source at a time.

    Python's parser, by which they read, raises a SystemError in one of several threads before 3.11.8 and 3.12.1
    (CPython issue 106905).
    """
    from triton.runtime.jit import JITCallable

    parse, lock = JITCallable.parse, threading.Lock()

    def parse_alone(self: Any) -> Any:
        with lock:
            return parse(self)

    JITCallable.parse = parse_alone


@triton.jit
def max(a, b):  # type: ignore[no-untyped-def]
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def min(a, b):  # type: ignore[no-untyped-def]
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def max_integer(a, b):  # type: ignore[no-untyped-def]
    return tl.where(a > b, a, b)


@triton.jit
def min_integer(a, b):  # type: ignore[no-untyped-def]
    return tl.where(a < b, a, b)


@triton.jit
def fmod_integer(a, b):  # type: ignore[no-untyped-def]
    return a % b


@triton.jit
def floor_quotient(a, b):  # type: ignore[no-untyped-def]
    # Where a size may be 0, nothing is divided by it in earnest.
    b = tl.where(b == 0, 1, b)
    down = ((a % b) != 0) & ((a < 0) != (b < 0))
    return a // b - down.to(tl.int64)


@triton.jit
def _add(a, b):  # type: ignore[no-untyped-def]
    return a + b


@triton.jit
def _mul(a, b):  # type: ignore[no-untyped-def]
    return a * b


@triton.jit
def _or(a, b):  # type: ignore[no-untyped-def]
    return a | b


@triton.jit
def _and(a, b):  # type: ignore[no-untyped-def]
    return a & b


@triton.jit
def larger(a, b):  # type: ignore[no-untyped-def]
    # NaN wins: it is the value that is not equal to itself. Of equal ones the later is taken.
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def smaller(a, b):  # type: ignore[no-untyped-def]
    return tl.where((a < b) | (a != a), a, b)


@triton.jit  # type: ignore[untyped-decorator]
def reduce_sum(x, axis: tl.constexpr, keep: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.reduce(x, axis, _add, keep_dims=keep)


@triton.jit  # type: ignore[untyped-decorator]
def reduce_prod(x, axis: tl.constexpr, keep: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.reduce(x, axis, _mul, keep_dims=keep)


@triton.jit  # type: ignore[untyped-decorator]
def reduce_max(x, axis: tl.constexpr, keep: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.reduce(x, axis, larger, keep_dims=keep)


@triton.jit  # type: ignore[untyped-decorator]
def reduce_min(x, axis: tl.constexpr, keep: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.reduce(x, axis, smaller, keep_dims=keep)


@triton.jit  # type: ignore[untyped-decorator]
def reduce_any(x, axis: tl.constexpr, keep: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.reduce(x.to(tl.int32), axis, _or, keep_dims=keep) != 0


@triton.jit  # type: ignore[untyped-decorator]
def reduce_all(x, axis: tl.constexpr, keep: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.reduce(x.to(tl.int32), axis, _and, keep_dims=keep) != 0


@triton.jit  # type: ignore[untyped-decorator]
def scan_sum(x, axis: tl.constexpr, reverse: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.associative_scan(x, axis, _add, reverse=reverse)


@triton.jit  # type: ignore[untyped-decorator]
def scan_prod(x, axis: tl.constexpr, reverse: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.associative_scan(x, axis, _mul, reverse=reverse)


@triton.jit  # type: ignore[untyped-decorator]
def scan_max(x, axis: tl.constexpr, reverse: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.associative_scan(x, axis, larger, reverse=reverse)


@triton.jit  # type: ignore[untyped-decorator]
def scan_min(x, axis: tl.constexpr, reverse: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.associative_scan(x, axis, smaller, reverse=reverse)


@triton.jit  # type: ignore[untyped-decorator]
def scan_logsumexp(x, axis: tl.constexpr, reverse: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.associative_scan(x, axis, logaddexp, reverse=reverse)


@triton.jit  # type: ignore[untyped-decorator]
def element_at(x, which, axis: tl.constexpr, keep: tl.constexpr):  # type: ignore[no-untyped-def]
    # The one element along the axis, bit by bit.
    if x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True)
    elif x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
    else:
        bits = x
    return tl.reduce(tl.where(which, bits, 0), axis, _or, keep_dims=keep).to(x.dtype, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def from_float8(x, digits: tl.constexpr, offset: tl.constexpr, special: tl.constexpr):  # type: ignore[no-untyped-def]
    # The number of a byte. What is no number has float32's own exponent, and the digits that it has.
    byte = x.to(tl.int32)
    rest = byte & 0x7F
    moved = rest << (23 - digits)
    small = (rest.to(tl.float32) * (2.0 ** (1 - offset - digits))).to(tl.int32, bitcast=True)
    found = tl.where(rest < (1 << digits), small, moved + ((127 - offset) << 23))
    found = tl.where(rest >= special, moved | 0x7F800000, found) | ((byte & 0x80) << 24)
    return found.to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def to_float8(x, digits: tl.constexpr, offset: tl.constexpr, most: tl.constexpr):  # type: ignore[no-untyped-def]
    # The byte of the nearest number, of two the even one. Added to a number whose last digit is worth the step between
    # the least ones, a smaller one is rounded to whole steps.
    raw = x.to(tl.int32, bitcast=True)
    rest = raw & 0x7FFFFFFF
    up = rest + ((1 << (22 - digits)) - 1) + ((rest >> (23 - digits)) & 1)
    normal = (up >> (23 - digits)) - ((127 - offset) << digits)
    added = rest.to(tl.float32, bitcast=True) + 2.0 ** (24 - offset - digits)
    small = added.to(tl.int32, bitcast=True) - ((151 - offset - digits) << 23)
    found = tl.where(rest < ((128 - offset) << 23), small, normal)
    found = tl.where(found > most, most, found)
    found = tl.where(rest > 0x7F800000, 0x7F, found)
    return (found | ((raw >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def sigmoid(x):  # type: ignore[no-untyped-def]
    return div(tl.full([], 1.0, x.dtype), 1.0 + exp(-x))


@triton.jit
def gelu(x):  # type: ignore[no-untyped-def]
    return x * 0.5 * (1.0 + erf(x * 0.7071067811865476))


@triton.jit
def dgelu(x):  # type: ignore[no-untyped-def]
    return 0.5 * (1.0 + erf(x * 0.7071067811865476)) + x * exp(x * x * -0.5) * 0.3989422804014327


@triton.jit
def _gelu_inner(x):  # type: ignore[no-untyped-def]
    return (x + x * x * x * 0.044715) * 0.7978845608028654


@triton.jit
def gelu_tanh(x):  # type: ignore[no-untyped-def]
    return x * 0.5 * (1.0 + tanh(_gelu_inner(x)))


@triton.jit
def dgelu_tanh(x):  # type: ignore[no-untyped-def]
    t = tanh(_gelu_inner(x))
    slope = (1.0 + x * x * 0.134145) * 0.7978845608028654
    return 0.5 * (1.0 + t) + x * 0.5 * (1.0 - t * t) * slope


@triton.jit
def silu(x):  # type: ignore[no-untyped-def]
    return div(x, 1.0 + exp(-x))


#: Of gelu's lower tail, as on CPUs: where it ends, and the coefficients of its logarithm, the constant one first.
_END = tl.constexpr(GELU_END)
_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8, _P9 = map(tl.constexpr, GELU_P)


@triton.jit
def approximate_gelu(x):  # type: ignore[no-untyped-def]
    """For bfloat16: off by 2**-16 of it, below -4.6 by 2**-13. What positive x lacks is what negative x has.

    The polynomial is log2 of the normal distribution's upper tail.
    """
    t = tl.minimum(tl.abs(x), _END)
    p = tl.fma(t, _P9, _P8)
    p = tl.fma(p, t, _P7)
    p = tl.fma(p, t, _P6)
    p = tl.fma(p, t, _P5)
    p = tl.fma(p, t, _P4)
    p = tl.fma(p, t, _P3)
    p = tl.fma(p, t, _P2)
    p = tl.fma(p, t, _P1)
    p = tl.fma(p, t, _P0)
    shown = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) - t * tl.exp2(p)
    return tl.where(x == float("-inf"), float("nan"), shown)


@triton.jit
def approximate_sigmoid(x):  # type: ignore[no-untyped-def]
    e = tl.exp2(tl.abs(x) * -1.4426950408889634)
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e)


@triton.jit
def approximate_silu(x):  # type: ignore[no-untyped-def]
    return x * approximate_sigmoid(x)


@triton.jit
def approximate_gelu_tanh(x):  # type: ignore[no-untyped-def]
    return x * approximate_sigmoid(2.0 * _gelu_inner(x))


@triton.jit
def dsilu(x):  # type: ignore[no-untyped-def]
    s = sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


@triton.jit
def mish(x):  # type: ignore[no-untyped-def]
    return x * tanh(log1p(exp(x)))


@triton.jit
def dmish(x):  # type: ignore[no-untyped-def]
    t = tanh(log1p(exp(x)))
    return t + x * sigmoid(x) * (1.0 - t * t)


@triton.jit
def negative_distance(x, y):  # type: ignore[no-untyped-def]
    # Infinities of one sign have no difference.
    return tl.where(x == y, 0.0, -tl.abs(x - y))


@triton.jit
def less_square(squares, rest, count):  # type: ignore[no-untyped-def]
    # Sums of squared distances from the mean, of those from a number nearby. With an infinite element `rest` is
    # infinite or NaN, and so the result NaN, as in eager mode; squares that overflow stay infinite.
    exact = squares - rest * div(rest, count)
    return tl.where(squares < float("inf"), max(exact, 0.0), squares + (rest - rest))


@triton.jit
def logaddexp(x, y):  # type: ignore[no-untyped-def]
    return max(x, y) + log1p(exp(negative_distance(x, y)))


@triton.jit
def logaddexp2(x, y):  # type: ignore[no-untyped-def]
    return max(x, y) + log1p(exp2(negative_distance(x, y))) * 1.4426950408889634


@triton.jit
def div(a, b):  # type: ignore[no-untyped-def]
    a, b = tl.broadcast(a, b)
    return a / b if a.dtype == tl.float64 else tl.div_rn(a, b)


@triton.jit
def sqrt(x):  # type: ignore[no-untyped-def]
    return tl.sqrt_rn(x)


@triton.jit
def rsqrt(x):  # type: ignore[no-untyped-def]
    return tl.div_rn(1.0, tl.sqrt_rn(x))


read_one_at_a_time()
if INTERPRETED:
    from framesmith_backends.launch.cuda.triton_interpreter import functions, mend

    mend()
    globals().update(functions())
else:

    @triton.jit
    def integer(x):  # type: ignore[no-untyped-def]
        return x.to(tl.int64)

    @triton.jit
    def count(x):  # type: ignore[no-untyped-def]
        return x.to(tl.int32)

    @triton.jit
    def double(x):  # type: ignore[no-untyped-def]
        return x.to(tl.float64)

    @tl.core.builtin  # type: ignore[untyped-decorator]
    def since(number: Any, first: Any, _semantic: Any = None, _builder: Any = None) -> Any:
        # LLVM keeps branches that hold these: no two are equal, and assembly may have effects.
        text = f"sub.s32 $0, $1, {getattr(first, 'value', first)};"
        given = {"_builder": _builder} if _semantic is None else {"_semantic": _semantic}  # before Triton 3.4
        return tl.inline_asm_elementwise(text, "=r,r", [number], dtype=tl.int32, is_pure=False, pack=1, **given)

    exp, exp2, expm1, log, log2 = libdevice.exp, libdevice.exp2, libdevice.expm1, libdevice.log, libdevice.log2
    log10, log1p, sin, cos, tanh = libdevice.log10, libdevice.log1p, libdevice.sin, libdevice.cos, libdevice.tanh
    erf, tan, asin, acos, atan = libdevice.erf, libdevice.tan, libdevice.asin, libdevice.acos, libdevice.atan
    sinh, cosh, asinh, acosh, atanh = libdevice.sinh, libdevice.cosh, libdevice.asinh, libdevice.acosh, libdevice.atanh
    erfc, erfinv, lgamma, i0, i1 = (
        libdevice.erfc,
        libdevice.erfinv,
        libdevice.lgamma,
        libdevice.cyl_bessel_i0,
        libdevice.cyl_bessel_i1,
    )
    atan2, hypot, pow, fmod, floor = libdevice.atan2, libdevice.hypot, libdevice.pow, libdevice.fmod, libdevice.floor
    ceil, round, trunc, copysign = libdevice.ceil, libdevice.rint, libdevice.trunc, libdevice.copysign


@triton.jit
def signbit(x):  # type: ignore[no-untyped-def]
    return tl.where(x == 0, 1.0 / x < 0, x < 0)


@triton.jit
def floordiv(x, y):  # type: ignore[no-untyped-def]
    """As CPython and ATen compute it from the remainder."""
    rest = fmod(x, y)
    exact = div(x - rest, y)
    exact = tl.where((rest != 0) & ((y < 0) != (rest < 0)), exact - 1.0, exact)
    floored = floor(exact)
    floored = tl.where(exact - floored > 0.5, floored + 1.0, floored)
    result = tl.where(exact == 0, copysign(exact * 0.0, div(x, y)), floored)
    return tl.where(y == 0, div(x, y), result)

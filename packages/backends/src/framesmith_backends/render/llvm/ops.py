"""The core operations in LLVM IR, and conversions between the types in registers and memory."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass

from framesmith_backends.ir.dtypes import DTYPES, FLOAT8, FLOAT8_NAN, is_unsigned, overflow_byte
from framesmith_backends.ir.ops import OPS, emitter, has_own
from framesmith_backends.render.llvm.builder import Builder, Value

Emit = Callable[..., Value]


def _resolved(reference: str) -> Emit:
    """The emitter that a row of `ir.ops` names. Elementary functions are written without the builder's flags."""
    name, *first = reference.split()
    module, _, function = name.rpartition(":")
    if not module:
        method = getattr(Builder, function)
        return (lambda b, *args: method(b, *first, *args)) if first else method
    emit = getattr(importlib.import_module(f"framesmith_backends.render.llvm.{module}"), function)

    def without_flags(b: Builder, *args: Value) -> Value:
        flags, b.flags = b.flags, ""
        try:
            found: Value = emit(b, *first, *args)
        finally:
            b.flags = flags
        return found

    return without_flags


@functools.cache
def emitter_of(name: str, dtype: str) -> Emit:
    """The emitter of the operation on values of a type."""
    reference = emitter(OPS[name].llvm, dtype)
    if reference is None:
        raise ValueError(f"no LLVM emitter of {name} for {dtype}")
    return _resolved(reference)


@functools.cache
def functions(dtype: str) -> dict[str, Emit]:
    """The emitters of elementary functions of float32, float64, or approximate ones (see `ir.ops.APPROXIMATE`)."""
    return {name: emitter_of(name, dtype) for name, row in OPS.items() if has_own(row.llvm, dtype)}


def emit_op(b: Builder, name: str, args: tuple[Value, ...], dtype: str) -> Value:
    """The operation on values of type `dtype` (of the last operand)."""
    return emitter_of(name, dtype)(b, *args)


def extreme(b: Builder, predicate: str, a: Value, c: Value) -> Value:
    """NaN in either operand wins; on a tie the second operand (this decides between -0.0 and 0.0)."""
    a, c = b.same(a, c)
    wins = b.compare(predicate, a, c)
    if a.kind in SIGNS:
        wins = b.binary("or", wins, b.compare("uno", a, b.number(0.0, a)))
    return b.select(wins, a, c)


# Signs are bits of integers: between values of bfloat16 in memory LLVM narrows these to 16 bits, and elsewhere knows
# them for what they are.
SIGNS = {"float": ("i32", -(1 << 31)), "double": ("i64", -(1 << 63))}


def copysign(b: Builder, a: Value, c: Value) -> Value:
    a, c = b.same(a, c)
    kind, sign = SIGNS[a.kind]
    bits = b.bits(a, kind)
    differing = b.binary("and", b.binary("xor", bits, b.bits(c, kind)), sign)
    return b.bits(b.binary("xor", bits, differing), a.kind)


def negative(b: Builder, a: Value) -> Value:
    kind, sign = SIGNS[a.kind]
    return b.bits(b.binary("xor", b.bits(a, kind), sign), a.kind)


def magnitude(b: Builder, a: Value) -> Value:
    kind, sign = SIGNS[a.kind]
    return b.bits(b.binary("and", b.bits(a, kind), ~sign), a.kind)


def absolute(b: Builder, a: Value) -> Value:
    return b.select(b.compare("slt", a, 0), b.neg(a), a)


def inverse(b: Builder, a: Value) -> Value:
    return b.binary("xor", a, True if a.kind == "i1" else -1)


def is_nan(b: Builder, a: Value) -> Value:
    return b.compare("uno", a, b.number(0.0, a))


def sign_bit(b: Builder, a: Value) -> Value:
    return b.compare("slt", b.bits(a, SIGNS[a.kind][0]), 0)


def second(b: Builder, a: Value, c: Value) -> Value:
    return c


# Divisors below this leave rests that doubles hold.
LARGEST_DIVISOR = 1 << 48


def quotient(b: Builder, sign: str, a: Value, c: Value) -> Value:
    """a / c towards zero, of integers that are signed ("s") or not ("u").

    Processors divide integers one by one: vectors are divided as floats that hold them.
    """
    known = c.lanes == 1 and not c.text.startswith("%")
    if a.lanes > 1 and known:
        # LLVM has shifts for powers of two, and for other numbers of 64 bits in vectors nothing.
        if a.kind == "i64" and b.avx512 and abs(int(c.text)) < LARGEST_DIVISOR and abs(int(c.text)).bit_count() > 1:
            return _quotient_by_known(b, a, int(c.text))
    elif max(a.lanes, c.lanes) > 1 and a.kind in HOLDING:
        a, c = b.same(a, c)
        found = b.binary("fdiv", *(b.convert(f"{sign}itofp", one, HOLDING[a.kind]) for one in (a, c)))
        return b.convert(f"fpto{sign}i", found, a.kind)
    elif max(a.lanes, c.lanes) > 1 and b.avx512:
        return _quotient_of_longs(b, *b.same(a, c))
    return b.binary(f"{sign}div", a, c)


#: Types whose quotients, truncated, are those of such floats: a quotient below a whole number is not rounded to it.
HOLDING = {"i8": "float", "i16": "float", "i32": "double"}


def _quotient_by_known(b: Builder, a: Value, divisor: int) -> Value:
    """a / divisor towards zero, by AVX-512's conversions between doubles and integers of 64 bits.

    The first quotient is too small by a little more than rounding can make it too large, so that the rest has a's sign
    and is below the divisor and 2**13. Of that rest, which a double holds, the factor is too large by less than the
    distance to the next whole quotient.
    """
    guess = b.mul(b.convert("sitofp", a, "double"), (1.0 - 2.0**-51) / divisor)
    first = b.convert("fptosi", guess, "i64")
    rest = b.sub(a, b.mul(first, divisor))
    second = b.convert("fptosi", b.mul(b.convert("sitofp", rest, "double"), (1.0 + 2.0**-51) / divisor), "i64")
    return b.add(first, second)


def _quotient_of_longs(b: Builder, a: Value, c: Value) -> Value:
    """a / c towards zero, by the same conversions; c is neither 0 nor -1.

    The first quotient is below the true one and within what doubles hold of it; that of the rest is off by one at most,
    which the last rest shows: it has a's sign, or is 0, and is smaller than c. A multiplication that overflows cancels
    in the difference.
    """
    divisor = b.convert("sitofp", c, "double")
    guess = b.mul(b.binary("fdiv", b.convert("sitofp", a, "double"), divisor), 1.0 - 2.0**-51)
    first = b.convert("fptosi", guess, "i64")
    rest = b.sub(a, b.mul(first, c))
    second = b.convert("fptosi", b.binary("fdiv", b.convert("sitofp", rest, "double"), divisor), "i64")
    rest = b.sub(rest, b.mul(second, c))
    zero, falls = b.number(0, a), b.compare("slt", a, 0)
    step = b.binary("or", b.binary("ashr", b.binary("xor", a, c), b.number(63, a)), b.number(1, a))
    along = b.select(falls, b.neg(rest), rest)
    below_zero = b.select(b.compare("slt", c, 0), c, b.neg(c))
    enough = b.compare("sge", b.add(along, below_zero), 0)
    off = b.select(b.compare("slt", along, 0), b.neg(step), b.select(enough, step, zero))
    return b.add(b.add(first, second), off)


def emit_cast(b: Builder, a: Value, source: str, target: str) -> Value:
    """The conversion of a register value; to a type computed in float32 it rounds the float."""
    old, new = DTYPES[source], DTYPES[target]
    if new.compute != target:
        rounded = STORAGE[target].rounded
        assert rounded is not None
        return rounded(b, emit_cast(b, a, source, "f32"))
    if target == "b1":
        if source == "b1":
            return a
        return b.compare("une" if old.kind == "f" else "ne", a, 0)
    if old.kind == "f" and new.kind != "f":
        return _to_integer(b, a, target)
    if old.register == new.register:
        return a
    if old.kind == "f":
        name = "fpext" if new.bits > old.bits else "fptrunc"
    elif new.kind == "f":
        name = "sitofp" if old.kind == "i" else "uitofp"
    else:
        name = "trunc" if old.bits > new.bits else "sext" if old.kind == "i" else "zext"
    return b.convert(name, a, new.register)


def _to_integer(b: Builder, a: Value, target: str) -> Value:
    """Truncation as eager's kernels do it on x86: by way of 32 bits, or 64; out of range is the smallest number.

    LLVM leaves open what its own conversion gives out of range, and folds constants to anything.
    """
    wide = "i64" if target == "i64" or is_unsigned(target) else "i32"
    bits = int(wide[1:])
    fits = b.compare("olt", b.intrinsic("fabs", a), b.number(2.0 ** (bits - 1), a))  # not for NaN
    inside = b.convert("fptosi", b.select(fits, a, b.number(0.0, a)), wide)
    whole = b.select(fits, inside, b.number(-(2 ** (bits - 1)), inside))
    return whole if wide == DTYPES[target].register else b.convert("trunc", whole, DTYPES[target].register)


def bf16_bits(b: Builder, a: Value, short_nans: bool = False) -> Value:
    """The upper 16 bits of the float rounded to nearest even, as i32; a NaN stays a NaN.

    Without asking for NaN, if each is known to have no lower bits: rounding adds nothing to it then.
    """
    raw = b.bits(a, "i32")
    if not short_nans:  # asked of 32 bits: LLVM would shuffle the answer into 16 where the result is stored
        raw = b.select(b.compare("uno", a, b.number(0.0, a)), b.number(0x7FC00000, raw), raw)
    upper = b.binary("lshr", raw, 16)
    if b.avx2 and a.lanes >= 8:  # four instructions, three of which wait for each other; it is five otherwise
        return b.binary("lshr", b.add(raw, b.pick_of_four((0x7FFF, 0x8000, 0x7FFF, 0x8000), upper)), 16)
    return b.binary("lshr", b.add(b.add(raw, 0x7FFF), b.binary("and", upper, 1)), 16)


def round_bf16(b: Builder, a: Value, short_nans: bool = False) -> Value:
    return b.bits(b.binary("shl", bf16_bits(b, a, short_nans), 16), "float")


#: Bits of float32's mantissa, its exponents' bias, and its bits of infinity.
_DIGITS, _BIAS, _INFINITY = 23, 127, 0x7F800000


def _read_float8(b: Builder, raw: Value, dtype: str) -> Value:
    """The number of a byte, as float32."""
    form = DTYPES[dtype]
    byte = b.convert("zext", raw, "i32")
    sign = b.binary("shl", b.binary("and", byte, 0x80), 24)
    rest = b.binary("and", byte, 0x7F)
    digits = b.binary("shl", rest, _DIGITS - form.digits)
    whole = b.convert("uitofp", rest, "float")
    small = b.bits(b.binary("fmul", whole, 2.0 ** (1 - form.bias - form.digits)), "i32")
    normal = b.add(digits, (_BIAS - form.bias) << _DIGITS)
    found = b.select(b.compare("ult", rest, 1 << form.digits), small, normal)
    # NaN and infinity have float32's own exponent.
    found = b.select(b.compare("uge", rest, form.special), b.binary("or", digits, _INFINITY), found)
    return b.bits(b.binary("or", found, sign), "float")


def _float8_bits(b: Builder, value: Value, dtype: str) -> Value:
    """The byte of the number that is nearest to a float32, of two the even one."""
    form = DTYPES[dtype]
    shift = _DIGITS - form.digits
    raw = b.bits(value, "i32")
    sign = b.binary("and", b.binary("lshr", raw, 24), 0x80)
    rest = b.binary("and", raw, 0x7FFFFFFF)
    last = b.binary("and", b.binary("lshr", rest, shift), 1)
    up = b.add(b.add(rest, (1 << (shift - 1)) - 1), last)
    normal = b.binary("sub", b.binary("lshr", up, shift), (_BIAS - form.bias) << form.digits)
    # Added to a number whose last digit is worth a step, a smaller one is rounded to whole steps.
    added = b.binary("fadd", b.bits(rest, "float"), 2.0 ** (_DIGITS + 1 - form.bias - form.digits))
    small = b.binary("sub", b.bits(added, "i32"), (_BIAS + _DIGITS + 1 - form.bias - form.digits) << _DIGITS)
    found = b.select(b.compare("ult", rest, (_BIAS - form.bias + 1) << _DIGITS), small, normal)
    most = overflow_byte(dtype)
    found = b.select(b.compare("ugt", found, most), b.number(most, found), found)
    found = b.select(b.compare("ugt", rest, _INFINITY), b.number(FLOAT8_NAN, found), found)
    return b.convert("trunc", b.binary("or", found, sign), "i8")


def _round_float8(b: Builder, value: Value, dtype: str) -> Value:
    """The nearest such number, as float32."""
    return _read_float8(b, _float8_bits(b, value, dtype), dtype)


@dataclass(frozen=True, slots=True)
class Storage:
    """Reading, writing and rounding of a type that memory holds otherwise than registers.

    A value that is written has been rounded to the type, except to float8: writing rounds to that.
    """

    read: Emit
    write: Emit
    rounded: Emit | None = None


STORAGE: dict[str, Storage] = {
    "b1": Storage(lambda b, raw: b.compare("ne", raw, 0), lambda b, value: b.convert("zext", value, "i8")),
    "bf16": Storage(
        lambda b, raw: b.bits(b.binary("shl", b.convert("zext", raw, "i32"), 16), "float"),
        lambda b, value: b.convert("trunc", b.binary("lshr", b.bits(value, "i32"), 16), "i16"),
        round_bf16,
    ),
    "f16": Storage(
        lambda b, raw: b.convert("fpext", raw, "float"),
        lambda b, value: b.convert("fptrunc", value, "half"),
        lambda b, value: b.convert("fpext", b.convert("fptrunc", value, "half"), "float"),
    ),
    **{
        name: Storage(*(functools.partial(emit, dtype=name) for emit in (_read_float8, _float8_bits, _round_float8)))
        for name in FLOAT8
    },
}


def from_memory(b: Builder, raw: Value, dtype: str) -> Value:
    """A loaded value as registers hold it."""
    return STORAGE[dtype].read(b, raw) if dtype in STORAGE else raw


def to_memory(b: Builder, value: Value, dtype: str) -> Value:
    """A register value as memory holds it."""
    return STORAGE[dtype].write(b, value) if dtype in STORAGE else value


# Elements of 16 bits, two in a word, as lanes of which those of even offsets come first: Note [Deinterleaved].


def from_memory_deinterleaved(b: Builder, raw: Value) -> Value:
    """Loaded values of bfloat16 as registers hold them, those of even offsets first."""
    half = raw.lanes // 2
    words = b.emit(f"bitcast {raw.typed} to <{half} x i32>", "i32", half)
    return b.bits(b.join([b.binary("shl", words, 16), b.binary("and", words, -(1 << 16))]), "float")


def to_memory_deinterleaved(b: Builder, value: Value) -> Value:
    """Values rounded to bfloat16, those of even offsets first, as memory holds them."""
    half, bits = value.lanes // 2, b.bits(value, "i32")
    even, odd = b.pick(bits, range(half)), b.pick(bits, range(half, value.lanes))
    words = b.binary("or", b.binary("lshr", even, 16), b.binary("and", odd, -(1 << 16)))
    return b.emit(f"bitcast {words.typed} to <{value.lanes} x i16>", "i16", value.lanes)


def interleaved(b: Builder, value: Value) -> Value:
    """The lanes in the order of their elements, of which those of even offsets came first."""
    return b.shuffle([k // 2 + k % 2 * (value.lanes // 2) for k in range(value.lanes)], value)

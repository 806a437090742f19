"""Floating numbers of 8 bits in LLVM: read as float32, and rounded to, by integer operations of 32 bits."""

from __future__ import annotations

from framesmith_backends.ir.dtypes import DTYPES, FLOAT8_NAN, overflow_byte
from framesmith_backends.render.llvm.builder import Builder, Value

#: Bits of float32's mantissa, the offset of its exponents, and its bits of infinity.
DIGITS, OFFSET, INFINITY = 23, 127, 0x7F800000


def read_float8(b: Builder, raw: Value, dtype: str) -> Value:
    """The number of a byte, as float32."""
    form = DTYPES[dtype]
    byte = b.convert("zext", raw, "i32")
    sign = b.binary("shl", b.binary("and", byte, 0x80), 24)
    rest = b.binary("and", byte, 0x7F)
    digits = b.binary("shl", rest, DIGITS - form.digits)
    whole = b.convert("uitofp", rest, "float")
    small = b.bits(b.binary("fmul", whole, 2.0 ** (1 - form.bias - form.digits)), "i32")
    normal = b.add(digits, (OFFSET - form.bias) << DIGITS)
    found = b.select(b.compare("ult", rest, 1 << form.digits), small, normal)
    # The exponent of what is no number is float32's own, and the digits are what they are.
    found = b.select(b.compare("uge", rest, form.special), b.binary("or", digits, INFINITY), found)
    return b.bits(b.binary("or", found, sign), "float")


def float8_bits(b: Builder, value: Value, dtype: str) -> Value:
    """The byte of the number that is nearest to a float32, of two the even one."""
    form = DTYPES[dtype]
    shift = DIGITS - form.digits
    raw = b.bits(value, "i32")
    sign = b.binary("and", b.binary("lshr", raw, 24), 0x80)
    rest = b.binary("and", raw, 0x7FFFFFFF)
    last = b.binary("and", b.binary("lshr", rest, shift), 1)
    up = b.add(b.add(rest, (1 << (shift - 1)) - 1), last)
    normal = b.binary("sub", b.binary("lshr", up, shift), (OFFSET - form.bias) << form.digits)
    # Added to a number whose last digit is worth a step, a smaller one is rounded to whole steps.
    added = b.binary("fadd", b.bits(rest, "float"), 2.0 ** (DIGITS + 1 - form.bias - form.digits))
    small = b.binary("sub", b.bits(added, "i32"), (OFFSET + DIGITS + 1 - form.bias - form.digits) << DIGITS)
    found = b.select(b.compare("ult", rest, (OFFSET - form.bias + 1) << DIGITS), small, normal)
    most = overflow_byte(dtype)
    found = b.select(b.compare("ugt", found, most), b.number(most, found), found)
    found = b.select(b.compare("ugt", rest, INFINITY), b.number(FLOAT8_NAN, found), found)
    return b.convert("trunc", b.binary("or", found, sign), "i8")


def round_float8(b: Builder, value: Value, dtype: str) -> Value:
    """The nearest such number, as float32."""
    return read_float8(b, float8_bits(b, value, dtype), dtype)

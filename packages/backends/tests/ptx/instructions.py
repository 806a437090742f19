"""The results of instructions, of the bits in registers: arithmetic, comparisons, conversions, bits.

A row takes the instruction's name in parts and its operands, typed by its last part, one number for each thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ptx.numbers import TYPES, bf16_of, flushed, integral, of_bf16, rounded, saturated
from ptx.program import PtxError

Array = np.ndarray[Any, Any]
Row = Callable[[Sequence[str], Sequence[Array]], Array]
F32, F64 = np.float32, np.float64


def _is_float(value: Array) -> bool:
    return bool(value.dtype.kind == "f")


def _with_ftz(compute: Row) -> Row:
    """The row with subnormal numbers taken and given as zeros where the instruction says so, and results clipped."""

    def row(parts: Sequence[str], x: Sequence[Array]) -> Array:
        ftz = "ftz" in parts and parts[-1] == "f32"
        found = compute(parts, [flushed(v) if ftz and v.dtype == F32 else v for v in x])
        if ftz and found.dtype == F32:
            found = flushed(found)
        if "sat" in parts and _is_float(found):
            found = np.where(np.isnan(found), found.dtype.type(0), np.clip(found, 0, 1)).astype(found.dtype)
        return _one_nan(found)

    return row


def _one_nan(value: Array) -> Array:
    """Devices have one NaN as a result, whichever were the operands."""
    if value.dtype in (F32, F64):
        wrong = np.isnan(value)
        if wrong.any():
            bits = np.uint32(0x7FFFFFFF).view(F32) if value.dtype == F32 else np.uint64(0x7FF8 << 48).view(F64)
            return np.where(wrong, bits, value)
    return value


def _direction(parts: Sequence[str]) -> str:
    return next((p for p in parts if p in ("rn", "rz", "rm", "rp")), "rn")


def _wide_of(value: Array) -> Array:
    return np.asarray(value).astype(np.longdouble if value.dtype == F64 else F64)


def _arithmetic(compute: Callable[..., Array]) -> Row:
    """Sums and products: of floating numbers in twice the precision (float64: in 64 bits) where not to the nearest."""

    def row(parts: Sequence[str], x: Sequence[Array]) -> Array:
        if _is_float(x[0]) and _direction(parts) != "rn":
            return rounded(compute(*map(_wide_of, x)), x[0].dtype.type, _direction(parts))
        return compute(*x)

    return _with_ftz(row)


def _fma(parts: Sequence[str], x: Sequence[Array]) -> Array:
    a, b, c = map(_wide_of, x)
    return rounded(a * b + c, x[0].dtype.type, _direction(parts))


def _multiply(parts: Sequence[str], x: Sequence[Array]) -> Array:
    kind = np.dtype(TYPES[parts[-1]])
    if kind.kind == "f":
        return _arithmetic(np.multiply)(parts, x)
    if "wide" in parts or "hi" in parts:
        if kind.itemsize == 8:
            return _high_of_64(x[0], x[1])
        wide = np.dtype(f"{kind.kind}{2 * kind.itemsize}")
        multiplied = x[0].astype(wide) * x[1].astype(wide)
        return multiplied if "wide" in parts else (multiplied >> wide.type(8 * kind.itemsize)).astype(kind)
    return x[0] * x[1]


def _high_of_64(a: Array, b: Array) -> Array:
    kind = a.dtype if a.ndim else b.dtype
    a, b = np.broadcast_arrays(a, b)
    return np.array([((int(p) * int(q)) >> 64) & (2**64 - 1) for p, q in zip(a.ravel(), b.ravel())], np.uint64).view(
        kind
    )


def _multiply_add(parts: Sequence[str], x: Sequence[Array]) -> Array:
    if TYPES[parts[-1]] in (F32, F64):
        return _fma(parts, x)
    if "sat" in parts:
        raise PtxError("integers with saturation")
    multiplied = _multiply(parts, x[:2])
    return multiplied + x[2].astype(multiplied.dtype)


def _divide(parts: Sequence[str], x: Sequence[Array]) -> Array:
    a, b = x
    if _is_float(a):
        return _arithmetic(np.divide)(parts, x)
    if np.any(b == 0):  # a device gives all bits
        b = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return a // b
    found = np.abs(a.astype(np.int64)) // np.abs(b.astype(np.int64))
    return np.where((a < 0) != (b < 0), -found, found).astype(a.dtype)


def _remainder(parts: Sequence[str], x: Sequence[Array]) -> Array:
    b = np.where(x[1] == 0, x[1].dtype.type(1), x[1])
    return x[0] - _divide(parts, [x[0], b]) * b


def _extreme(parts: Sequence[str], x: Sequence[Array]) -> Array:
    largest = parts[0] == "max"
    if not _is_float(x[0]) or "NaN" in parts:
        return (np.maximum if largest else np.minimum)(*x)
    return (np.fmax if largest else np.fmin)(*x)


def _shift(parts: Sequence[str], x: Sequence[Array]) -> Array:
    value, count = x[0], x[1].astype(np.uint32)
    bits = value.dtype.itemsize * 8
    kept = np.minimum(count, np.uint32(bits - 1)).astype(value.dtype)
    found = value << kept if parts[0] == "shl" else value >> kept
    over = count >= bits
    return np.where(over, value.dtype.type(0), found) if value.dtype.kind == "u" or parts[0] == "shl" else found


def _funnel(parts: Sequence[str], x: Sequence[Array]) -> Array:
    both = (x[1].astype(np.uint64) << np.uint64(32)) | x[0].astype(np.uint64)
    count = x[2] & np.uint32(31) if "wrap" in parts else np.minimum(x[2], np.uint32(32))
    if "l" in parts:
        return (((both << count.astype(np.uint64)) >> np.uint64(32)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return ((both >> count.astype(np.uint64)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _field(parts: Sequence[str], x: Sequence[Array]) -> Array:
    """bfe: a field of bits, filled up with its highest one where it is signed."""
    kind = x[0].dtype
    bits = kind.itemsize * 8
    start, length = (np.asarray(v).astype(np.int64) & 255 for v in x[1:3])
    value = x[0].astype(np.int64 if kind.kind == "i" else np.uint64)
    shifted = value >> np.minimum(start, 63).astype(value.dtype)
    left = np.clip(64 - length, 0, 63).astype(value.dtype)
    if kind.kind == "i" and np.any(start + length > bits):
        raise PtxError("bfe beyond the highest bit")
    found = (shifted << left) >> left
    return np.where(length == 0, 0, found).astype(kind)


def _insert(parts: Sequence[str], x: Sequence[Array]) -> Array:
    start, length = x[2].astype(np.uint64), x[3].astype(np.uint64)
    mask = ((np.uint64(1) << length) - np.uint64(1)) << start
    found = (x[1].astype(np.uint64) & ~mask) | ((x[0].astype(np.uint64) << start) & mask)
    return found.astype(x[0].dtype)


def _permute(parts: Sequence[str], x: Sequence[Array]) -> Array:
    if parts[1:] != ("b32",):
        raise PtxError("prmt in a mode")
    both = (x[1].astype(np.uint64) << np.uint64(32)) | x[0].astype(np.uint64)
    found = np.uint32(0)
    for k in range(4):
        choice = (x[2] >> np.uint32(4 * k)) & np.uint32(15)
        byte = (both >> ((choice & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & np.uint64(255)
        sign = np.where(byte >= 128, np.uint64(255), np.uint64(0))
        found = found | (np.where(choice >= 8, sign, byte).astype(np.uint32) << np.uint32(8 * k))
    return np.asarray(found)


def _logic(parts: Sequence[str], x: Sequence[Array]) -> Array:
    table = int(np.asarray(x[3]).flat[0])
    found = np.zeros_like(np.broadcast_arrays(*x[:3])[0])
    for k in range(8):
        if table >> k & 1:
            found = found | ((x[0] if k & 4 else ~x[0]) & (x[1] if k & 2 else ~x[1]) & (x[2] if k & 1 else ~x[2]))
    return found


_COMPARISONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": lambda a, b: (a != b) & ~_nan(a, b), "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    "equ": lambda a, b: (a == b) | _nan(a, b), "neu": np.not_equal, "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b), "gtu": lambda a, b: ~(a <= b), "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~_nan(a, b), "nan": lambda a, b: _nan(a, b),
}  # fmt: skip


def _nan(a: Array, b: Array) -> Array:
    return (a != a) | (b != b)


def compared(parts: Sequence[str], x: Sequence[Array]) -> Array:
    """setp; a third operand is a predicate that it is joined with."""
    a, b = (flushed(v) if "ftz" in parts and v.dtype == F32 else v for v in x[:2])
    found = _COMPARISONS[parts[1]](a, b)
    if len(x) == 3:
        found = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[parts[2]](found, x[2])
    return np.asarray(found)


def converted(parts: Sequence[str], source: Callable[[str], Array], second: Callable[[str], Array]) -> Array:
    """cvt: of `source` read as a type, and of what stands `second` where two numbers go into one register."""
    to, of = parts[-2:]
    ways = parts[1:-2]
    if to in ("bf16x2", "f16x2"):
        pair = [_half(to[:-2], source(of)), _half(to[:-2], second(of))]
        return (pair[0].astype(np.uint32) << np.uint32(16)) | pair[1].astype(np.uint32)
    if to == "tf32":
        bits = np.asarray(source("b32"))
        return np.where(np.isfinite(bits.view(F32)), (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000), bits)
    value = of_bf16(source("b16")) if of == "bf16" else source(of)
    if "ftz" in ways and value.dtype == F32:
        value = flushed(value)
    if to == "bf16":
        return bf16_of(np.asarray(value, F32))
    kind = TYPES[to]
    floating = np.dtype(kind).kind == "f"
    whole = next((w for w in ways if w in ("rni", "rzi", "rmi", "rpi")), None)
    if _is_float(value):
        value = integral(value, whole) if whole else value
        if not floating:
            return saturated(value, kind)
        narrow = np.dtype(kind).itemsize < value.dtype.itemsize
        found = rounded(value, kind, _direction(ways)) if narrow else value.astype(kind)
    elif floating:
        found = rounded(value.astype(np.longdouble), kind, _direction(ways))
    elif "sat" in ways:
        limits = np.iinfo(kind)
        return np.clip(value.astype(np.longdouble), limits.min, limits.max).astype(kind)
    else:
        return value.astype(kind)
    if "ftz" in ways and found.dtype == F32:
        found = flushed(found)
    if "sat" in ways:
        found = np.where(np.isnan(found), kind(0), np.clip(found, 0, 1)).astype(kind)
    return found


def _half(kind: str, value: Array) -> Array:
    value = np.asarray(value, F32)
    return bf16_of(value) if kind == "bf16" else value.astype(np.float16).view(np.uint16)


def _function(compute: Callable[[Array], Array]) -> Row:
    """An approximation, computed in float64."""
    return _with_ftz(lambda parts, x: compute(x[0].astype(F64)).astype(x[0].dtype))


def _count(parts: Sequence[str], x: Sequence[Array]) -> Array:
    bits = np.unpackbits(np.ascontiguousarray(np.atleast_1d(x[0])).view(np.uint8), bitorder="little")
    bits = bits.reshape(-1, x[0].dtype.itemsize * 8)
    if parts[0] == "popc":
        return bits.sum(1).astype(np.uint32)
    leading = np.where(bits.any(1), np.argmax(bits[:, ::-1], 1), bits.shape[1]).astype(np.uint32)
    if parts[0] == "clz":
        return leading
    return np.where(bits.any(1), np.uint32(bits.shape[1] - 1) - leading, np.uint32(0xFFFFFFFF))  # bfind


def _reversed(parts: Sequence[str], x: Sequence[Array]) -> Array:
    bits = np.unpackbits(np.ascontiguousarray(np.atleast_1d(x[0])).view(np.uint8), bitorder="little")
    size = x[0].dtype.itemsize
    return np.packbits(bits.reshape(-1, size * 8)[:, ::-1], bitorder="little").view(x[0].dtype)


def _chosen(parts: Sequence[str], x: Sequence[Array]) -> Array:
    return np.where(x[2], x[0], x[1])


def _saturated_sum(parts: Sequence[str], x: Sequence[Array]) -> Array:
    if "sat" in parts and not _is_float(x[0]):
        raise PtxError("integers with saturation")
    return _arithmetic(np.add if parts[0] == "add" else np.subtract)(parts, x)


ROWS: Mapping[str, Row] = {
    "add": _saturated_sum, "sub": _saturated_sum, "mul": _multiply, "mad": _with_ftz(_multiply_add),
    "fma": _with_ftz(_fma), "div": _with_ftz(_divide), "rem": _remainder,
    "min": _with_ftz(_extreme), "max": _with_ftz(_extreme),
    "abs": _with_ftz(lambda parts, x: np.abs(x[0])), "neg": _with_ftz(lambda parts, x: -x[0]),
    "and": lambda parts, x: x[0] & x[1], "or": lambda parts, x: x[0] | x[1], "xor": lambda parts, x: x[0] ^ x[1],
    "not": lambda parts, x: ~x[0], "shl": _shift, "shr": _shift, "shf": _funnel, "bfe": _field, "bfi": _insert,
    "prmt": _permute, "lop3": _logic, "popc": _count, "clz": _count, "bfind": _count, "brev": _reversed,
    "selp": _chosen, "copysign": lambda parts, x: np.copysign(x[1], x[0]),
    "sqrt": _function(np.sqrt), "rsqrt": _function(lambda v: 1 / np.sqrt(v)), "rcp": _function(lambda v: 1 / v),
    "ex2": _function(np.exp2), "lg2": _function(np.log2), "sin": _function(np.sin), "cos": _function(np.cos),
    "tanh": _function(np.tanh),
}  # fmt: skip
#: Types of operands that are not the instruction's.
OPERANDS: Mapping[str, Mapping[int, str]] = {
    "shl": {1: "b32"}, "shr": {1: "b32"}, "bfe": {1: "b32", 2: "b32"}, "bfi": {2: "b32", 3: "b32"},
    "selp": {2: "pred"}, "setp": {2: "pred"},
}  # fmt: skip

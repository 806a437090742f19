"""The scalar types: one row each, with what every stage asks of it.

Low-precision types and float8 are for storage: arithmetic on their values is in float32. Eager mode moves and converts
float8 but does not compute with it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DType:
    """One row: `kind` is b(ool), u(nsigned), i(nteger) or f(loat); `compute` is the type arithmetic runs in.

    `register` and `memory` are LLVM types, `triton` is the type of values in Triton, `pointer` that of a pointer in a
    compiled signature. Triton loads and stores the bytes of float8, and keeps bools as bytes. `digits` are the explicit
    bits of the mantissa; of float8 `special` is the least byte, without its sign, that is infinite or NaN.
    """

    name: str
    torch: torch.dtype
    kind: str
    bits: int
    compute: str
    register: str
    memory: str
    triton: str
    pointer: str
    digits: int = 0
    special: int = 0

    @property
    def itemsize(self) -> int:
        return -(-self.bits // 8)

    @property
    def bias(self) -> int:
        """The offset of a floating type's exponents."""
        return (1 << (self.bits - self.digits - 2)) - 1


_ROWS = (
    DType("b1", torch.bool, "b", 1, "b1", "i1", "i8", "tl.int1", "*i8"),
    DType("u8", torch.uint8, "u", 8, "u8", "i8", "i8", "tl.uint8", "*u8"),
    DType("i8", torch.int8, "i", 8, "i8", "i8", "i8", "tl.int8", "*i8"),
    DType("i16", torch.int16, "i", 16, "i16", "i16", "i16", "tl.int16", "*i16"),
    DType("i32", torch.int32, "i", 32, "i32", "i32", "i32", "tl.int32", "*i32"),
    DType("i64", torch.int64, "i", 64, "i64", "i64", "i64", "tl.int64", "*i64"),
    DType("f8e4m3", torch.float8_e4m3fn, "f", 8, "f32", "float", "i8", "tl.uint8", "*u8", 3, 0x7F),
    DType("f8e5m2", torch.float8_e5m2, "f", 8, "f32", "float", "i8", "tl.uint8", "*u8", 2, 0x7C),
    DType("f16", torch.float16, "f", 16, "f32", "float", "half", "tl.float16", "*fp16", 10),
    DType("bf16", torch.bfloat16, "f", 16, "f32", "float", "i16", "tl.bfloat16", "*bf16", 7),
    DType("f32", torch.float32, "f", 32, "f32", "float", "float", "tl.float32", "*fp32", 23),
    DType("f64", torch.float64, "f", 64, "f64", "double", "double", "tl.float64", "*fp64", 52),
)

DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
FROM_TORCH: dict[torch.dtype, str] = {row.torch: row.name for row in _ROWS}
FLOAT8 = frozenset(row.name for row in _ROWS if row.special)
LOW_PRECISION = frozenset(("f16", "bf16"))
#: The types that eager mode computes with.
NUMBERS = {kind: name for kind, name in FROM_TORCH.items() if name not in FLOAT8}
#: The byte of NaN in each float8 type.
FLOAT8_NAN = 0x7F


def is_float(name: str) -> bool:
    return DTYPES[name].kind == "f"


def is_integer(name: str) -> bool:
    return DTYPES[name].kind in "iu"


def is_unsigned(name: str) -> bool:
    return DTYPES[name].kind == "u"


def is_low_precision(dtype: torch.dtype) -> bool:
    return FROM_TORCH.get(dtype) in LOW_PRECISION


def rounded_to(value: float, name: str) -> float:
    """The number of this floating type that is nearest. (Of types computed in themselves, machine code rounds.)"""
    if DTYPES[name].compute == name:
        return float(value)
    return float(torch.tensor(value, dtype=torch.float64, device="cpu").to(DTYPES[name].torch))


def integer_range(name: str) -> tuple[int, int]:
    """The least and the greatest value of a type that is not floating."""
    row = DTYPES[name]
    sign = row.kind == "i"
    return -(sign << (row.bits - 1)), (1 << (row.bits - sign)) - 1


def extremes(name: str) -> tuple[int, int] | tuple[float, float]:
    """The same of any type: of a floating one the infinities."""
    return (-math.inf, math.inf) if is_float(name) else integer_range(name)


def holds(name: str, value: bool | int | float) -> bool:
    """Whether the number lies within the type's range, so that ATen converts it."""
    if is_float(name):
        return not math.isfinite(value) or abs(value) <= torch.finfo(DTYPES[name].torch).max
    least, most = integer_range(name)
    return math.isfinite(value) and least <= value <= most


def compute_type(name: str) -> str:
    """The type in which a value of this type takes part in arithmetic."""
    return DTYPES[name].compute


@functools.cache
def overflow_byte(name: str) -> int:
    """The byte that eager mode rounds to above all numbers of a float8 type: infinity, NaN, or the largest number.

    For `float8_e4m3fn`, which has no infinity, it depends on the release of torch.
    """
    special = DTYPES[name].special
    return special - 1 if math.isfinite(rounded_to(math.inf, name)) else special

"""The scalar types of the loop IR and what each is to torch. Half types are storage: arithmetic is in float32.

So are those of 8 bits, which eager mode moves and converts but does not compute with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DType:
    """One row: `kind` is b(ool), u(nsigned), i(nteger) or f(loat); `compute` is the type arithmetic runs in."""

    name: str
    torch: torch.dtype
    kind: str
    bits: int
    compute: str

    @property
    def itemsize(self) -> int:
        return 1 if self.kind == "b" else self.bits // 8


_ROWS = (
    DType("b1", torch.bool, "b", 1, "b1"),
    DType("u8", torch.uint8, "u", 8, "u8"),
    DType("i8", torch.int8, "i", 8, "i8"),
    DType("i16", torch.int16, "i", 16, "i16"),
    DType("i32", torch.int32, "i", 32, "i32"),
    DType("i64", torch.int64, "i", 64, "i64"),
    DType("f8e4m3", torch.float8_e4m3fn, "f", 8, "f32"),
    DType("f8e5m2", torch.float8_e5m2, "f", 8, "f32"),
    DType("f16", torch.float16, "f", 16, "f32"),
    DType("bf16", torch.bfloat16, "f", 16, "f32"),
    DType("f32", torch.float32, "f", 32, "f32"),
    DType("f64", torch.float64, "f", 64, "f64"),
)

DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
FROM_TORCH: dict[torch.dtype, str] = {row.torch: row.name for row in _ROWS}
#: Floating types of 8 bits.
FLOAT8 = frozenset(row.name for row in _ROWS if row.kind == "f" and row.bits == 8)
#: Those that eager mode computes with.
NUMBERS = {kind: name for kind, name in FROM_TORCH.items() if name not in FLOAT8}


def is_float(name: str) -> bool:
    return DTYPES[name].kind == "f"


def is_integer(name: str) -> bool:
    return DTYPES[name].kind in "iu"


def nearest(value: float, name: str) -> float:
    """The value of this floating type that is nearest to a number. (Of the others, machine code rounds literals.)"""
    if DTYPES[name].compute == name:
        return float(value)
    return float(torch.tensor(value, dtype=torch.float64, device="cpu").to(DTYPES[name].torch))


def whole_numbers(name: str) -> tuple[int, int]:
    """The least and the greatest value of a type that is not floating."""
    row = DTYPES[name]
    if row.kind == "i":
        return -(1 << (row.bits - 1)), (1 << (row.bits - 1)) - 1
    return 0, (1 << row.bits) - 1


def extremes(name: str) -> tuple[int, int] | tuple[float, float]:
    """The same of any type: of a floating one the infinities."""
    return (-math.inf, math.inf) if is_float(name) else whole_numbers(name)


def holds(name: str, value: bool | int | float) -> bool:
    """Whether the number lies within the type's range, so that ATen converts it."""
    if is_float(name):
        return not math.isfinite(value) or abs(value) <= torch.finfo(DTYPES[name].torch).max
    least, most = whole_numbers(name)
    return math.isfinite(value) and least <= value <= most


def compute_type(name: str) -> str:
    """The type in which a value of this type takes part in arithmetic (float32 for the half types)."""
    return DTYPES[name].compute

"""Numbers as PTX has them in registers: bits read as a type, roundings, low-precision types."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
TYPES: dict[str, type] = {
    "u8": np.uint8, "s8": np.int8, "b8": np.uint8, "u16": np.uint16, "s16": np.int16, "b16": np.uint16,
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "f32": np.float32, "f16": np.float16,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f64": np.float64,
}  # fmt: skip
HOLDERS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def flushed(value: Array) -> Array:
    """float32 without subnormal numbers."""
    return np.where(np.abs(value) < np.float32(1.1754944e-38), np.copysign(np.float32(0), value), value)


def rounded(value: Array, kind: type, how: str) -> Array:
    """Wide floating numbers as those of a narrower type; `how` is rn, rz, rm or rp."""
    with np.errstate(all="ignore"):
        near = value.astype(kind)
        if how == "rn":
            return near
        wide = near.astype(value.dtype)
        down, up = np.nextafter(near, kind(-np.inf)), np.nextafter(near, kind(np.inf))
        lower = np.where(wide > value, down, near)
        upper = np.where(wide < value, up, near)
    if how == "rm":
        return lower
    if how == "rp":
        return upper
    return np.where(value < 0, upper, lower)


def bf16_of(value: Array) -> Array:
    """float32 rounded to the nearest bfloat16, as its bits."""
    return (
        torch.from_numpy(np.ascontiguousarray(value, np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)
    )


def of_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def integral(value: Array, how: str) -> Array:
    """Floating numbers rounded to whole ones: rni, rzi, rmi, rpi."""
    return {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[how](value)


def saturated(value: Array, kind: type) -> Array:
    """Whole floating numbers as integers, the nearest one where they are beyond; NaN is 0."""
    limits = np.iinfo(kind)
    wide = np.nan_to_num(value.astype(np.longdouble), nan=0.0, posinf=np.inf, neginf=-np.inf)
    with np.errstate(all="ignore"):
        inside = np.clip(wide, np.longdouble(int(limits.min)), np.longdouble(int(limits.max)))
        return np.where(inside < 0, inside.astype(np.int64).astype(kind), inside.astype(np.uint64).astype(kind))

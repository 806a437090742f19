"""Floating numbers of 8 bits: a sign, exponent and mantissa, as eager mode reads and rounds them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from framesmith_backends.ir.dtypes import nearest

#: A byte that is no number in either type; that of infinity, which one of them has.
NAN, INFINITE = 0x7F, 0x7C


@dataclass(frozen=True, slots=True)
class Format:
    """Bits of the mantissa, the offset of exponents, and the least byte, without its sign, of what is no number."""

    digits: int
    offset: int
    special: int

    @property
    def step(self) -> int:
        """The power of two between the least numbers, which have fewer digits."""
        return 1 - self.offset - self.digits


FORMATS = {"f8e4m3": Format(3, 7, NAN), "f8e5m2": Format(2, 15, INFINITE)}


@functools.cache
def too_large(dtype: str) -> int:
    """The byte that eager mode gives for what is above all numbers: infinity, NaN, or the largest number.

    For `float8_e4m3fn`, which has no infinity, it depends on the release of torch.
    """
    if FORMATS[dtype].special == INFINITE:
        return INFINITE
    return NAN - 1 if math.isfinite(nearest(math.inf, dtype)) else NAN

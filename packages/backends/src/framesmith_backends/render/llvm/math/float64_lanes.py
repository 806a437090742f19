"""Helpers of float32 functions that are computed in double precision."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math.float64 import split


def widened(b: Builder, x: Value) -> Value:
    return b.convert("fpext", x, "double")


def narrowed(b: Builder, x: Value) -> Value:
    return b.convert("fptrunc", x, "float")


def in_parts(b: Builder, function: Callable[[Value], Value], x: Value) -> Value:
    """The function of so many lanes at a time that the processor's registers hold them in double precision."""
    lanes = min(x.lanes, 32 if b.avx512 else 8)
    return b.join([function(b.pick(x, range(first, first + lanes))) for first in range(0, x.lanes, lanes)])


def log_terms(b: Builder, x: Value, polynomial: tuple[float, ...]) -> tuple[Value, Value, Value]:
    """(k, s, p): a logarithm of a positive normal number is k times that of 2, and s * p.

    The polynomial, in s**2, times s is the logarithm of (1 + s) / (1 - s), between sqrt(1/2) and sqrt(2).
    """
    k, m = split(b, x)
    s = b.div(b.sub(m, 1.0), b.add(m, 1.0))
    return k, s, b.polynomial(b.mul(s, s), polynomial)

"""Lowering of upsampling by whole factors, and of its gradients, as weighted sums of a few elements that lie together.

Torch's formulas (aten/src/ATen/native/UpSample.h): the centre of pixel `o` of the result is at (o + 1/2) / k - 1/2 in
the source, never before its first pixel. The elements beside it are at indices that are integer expressions of `o`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from framesmith_backends.ir.dtypes import compute_type, is_float
from framesmith_backends.ir.expr import Cast, Expr, Index, Op, cast, folded, guarded, number
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import Size
from framesmith_backends.lower.movement.copies import at_least, below, conjunction, inside
from framesmith_backends.lower.registry import Rule, add_row
from framesmith_backends.lower.scope import Decline, Scope
from framesmith_backends.lower.tensor import Tensor, point

#: Sums of more elements are ATen's.
MOST_TERMS = 16


@dataclass(frozen=True, slots=True)
class Tap:
    """One of the elements of a dimension that are added up: its place, when it is there, and its weight (1).

    `instead`: the place of the one that is taken where it is not there; else it counts as zero.
    """

    place: Ix
    valid: Expr | None
    weight: Expr | None = None
    instead: Ix | None = None


Taps = Callable[[Ix, int, Size, str], list[Tap]]


def _nearest(here: Ix, factor: int, size: Size, dtype: str) -> list[Tap]:
    return [Tap(index.floordiv(here, factor), None)]


def _nearest_backward(here: Ix, factor: int, size: Size, dtype: str) -> list[Tap]:
    first = index.scale(here, factor)
    return [Tap(index.add(first, index.const(k)), None) for k in range(factor)]


def _linear(here: Ix, factor: int, size: Size, dtype: str) -> list[Tap]:
    """The pixels on both sides; at the border there is one, and it counts whole.

    Before the first pixel torch adds the second one too, times 0, which is NaN for an infinite one.
    """
    double = index.add(index.scale(here, 2), index.const(1 + factor))
    low = index.add(index.floordiv(double, 2 * factor), index.const(-1))
    high = index.add(low, index.const(1))
    part: Expr = Op("mul", Cast(Index(index.mod(double, 2 * factor)), dtype), number(0.5 / factor, dtype))
    one, none = number(1.0, dtype), number(0.0, dtype)
    has_low, has_high = at_least(low, 0), below(high, size)
    of_high = Op("where", has_low, Op("where", has_high, part, none), one)
    assert isinstance(size, int), "`factors` takes no others"
    second = index.const(min(1, size - 1))
    return [Tap(low, has_low, Op("sub", one, of_high), second), Tap(high, has_high, of_high)]


def _linear_backward(here: Ix, factor: int, size: Size, dtype: str) -> list[Tap]:
    """The pixels of the result that this one is beside; at the border it is all that there is."""
    begin = index.add(index.scale(here, factor), index.const(factor // 2 - factor))
    taps = []
    for k in range(2 * factor):
        place = index.add(begin, index.const(k))
        part = (2 * (factor // 2) + 2 * k + 1 - factor) % (2 * factor) / (2 * factor)
        is_high = k < factor
        alone = below(here, 1) if is_high else at_least(here, size - 1)
        inner = number(part if is_high else 1.0 - part, dtype)
        taps.append(Tap(place, inside(place, size * factor), Op("where", alone, number(1.0, dtype), inner)))
    return taps


def factors(sizes: Sequence[Size], results: Sequence[Size], scales: Sequence[float | None]) -> list[int]:
    """By how much each dimension grows; Decline where that is no whole number, known now."""
    found = []
    for size, result, scale in zip(sizes, results, scales, strict=True):
        if type(size) is not int or type(result) is not int or result % size:
            raise Decline("upsampling by other than whole factors")
        if scale is not None and scale != result // size:
            raise Decline("a scale other than that of the sizes")
        found.append(result // size)
    return found


def _why_not_nearest(factor: int, size: int) -> str | None:
    """Why eager's pixel is not `o // factor`: it multiplies by a reciprocal in float32, which is rounded; or None."""
    step = ctypes.c_float(1.0 / factor).value
    for at in range(factor - 1, size * factor):
        if int(ctypes.c_float(at * step).value) != at // factor:
            return f"at {at}, eager's rounding takes another pixel"
    return None


def _sum(x: Tensor, outer: Sequence[Ix], taps: Sequence[list[Tap]], chosen: Sequence[Tap], dtype: str) -> Expr:
    """The weighted sum over the taps of the dimensions that are left, for those chosen before."""
    if not taps:
        element = x.at((*outer, *(tap.place for tap in chosen)))
        return cast(guarded(element, conjunction([tap.valid for tap in chosen])), dtype)
    terms = []
    for tap in taps[0]:
        term = _sum(x, outer, taps[1:], [*chosen, tap], dtype)
        if tap.instead is not None:
            assert tap.valid is not None
            other = _sum(x, outer, taps[1:], [*chosen, Tap(tap.instead, None)], dtype)
            term = Op("where", tap.valid, term, other)
        terms.append(term if tap.weight is None else Op("mul", tap.weight, term))
    return folded("add", terms)


def _upsample(rank: int, taps: Taps) -> Rule:
    linear, backward = taps in (_linear, _linear_backward), taps in (_nearest_backward, _linear_backward)

    def lower(s: Scope, x: Tensor, output_size: Sequence[Size], *settings: Any) -> Tensor:
        sizes = (settings[0] if backward else x.shape)[-rank:]
        growth = factors(sizes, output_size, _scales(settings[1:] if backward else settings, rank, linear))
        if not linear:
            for factor, size in zip(growth, sizes, strict=True):
                if (reason := _why_not_nearest(factor, size)) is not None:
                    raise Decline(reason)
        here, inner = point(s.result.shape), compute_type(x.dtype)
        each = [taps(ix, k, size, inner) for ix, k, size in zip(here[-rank:], growth, sizes, strict=True)]
        terms = math.prod(map(len, each))
        if terms > MOST_TERMS or (terms > 1 and not is_float(x.dtype)):
            raise Decline(f"sums of {terms} elements of {x.dtype}")
        return s.made(_sum(x, here[:-rank], each, [], inner))

    return lower


def _scales(settings: Sequence[Any], rank: int, linear: bool) -> tuple[float | None, ...]:
    """The scales of a call; Decline where corners are aligned."""
    if linear and settings and settings[0]:
        raise Decline("aligned corners")
    given = tuple(settings[1:] if linear else settings)
    return given + (None,) * (rank - len(given))


for _rank, _kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    add_row(_upsample(_rank, _linear), f"upsample_{_kind}{_rank}d")
    add_row(_upsample(_rank, _linear_backward), f"upsample_{_kind}{_rank}d_backward")
    for _name in (f"upsample_nearest{_rank}d", f"_upsample_nearest_exact{_rank}d"):
        add_row(_upsample(_rank, _nearest), _name)
        add_row(_upsample(_rank, _nearest_backward), f"{_name}_backward")

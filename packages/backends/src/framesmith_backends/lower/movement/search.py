"""Lowering of binary searches among boundaries: Note [Steps].

Note [Steps]: a search goes through exactly ATen's steps, each of which halves what lies between `start` and `end`, so
that it finds the same place also among boundaries that are in no order, or no numbers. There are as many as the number
of boundaries has bits, one after another in one expression; who is through before the last one stays where it is. All
boundaries that the first steps may compare with are read before the loop over the values (`_ahead`). Each step then
chooses the half of them that the next ones may still need: choices in vectors cost less than indirect reads.
"""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.ir.dtypes import compute_type
from framesmith_backends.ir.expr import Const, Expr, Op, cast, indirect
from framesmith_backends.ir.program import Failure
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import hint, numel
from framesmith_backends.lower.registry import rule
from framesmith_backends.lower.scope import Decline, Scope, promoted
from framesmith_backends.lower.tensor import Operand, Shape, Tensor, element, met, point

FAR = Failure("RuntimeError", "torch.searchsorted(): sorter index out of range")
#: Steps whose boundaries are chosen among what is read before the loops: `2 ** n - n - 1` choices for n steps.
KNOWN_STEPS = 5
#: For each boundary that is read before the loops there are as many values at least.
VALUES_FOR_ONE = 4
#: Up to so many boundaries, the sum of two positions is of 32 bits.
MOST_NARROW = 1 << 30


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    s: Scope, boundaries: Tensor, values: Operand, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if side not in (None, "left", "right") or (right and side == "left"):
        raise Decline("sides that contradict each other")
    return _searched(s, boundaries, values, right or side == "right", sorter)


@rule("bucketize.Tensor", "bucketize.Scalar")
def bucketize(s: Scope, values: Operand, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    if len(boundaries.shape) != 1:
        raise Decline("boundaries of several dimensions")
    return _searched(s, boundaries, values, right, None)


def _searched(s: Scope, boundaries: Tensor, values: Operand, right: bool, sorter: Tensor | None) -> Tensor:
    common, shape = promoted(boundaries, values), s.result.shape
    if common == "b1":
        raise Decline("bools, among which ATen does not search")
    count, rows = boundaries.shape[-1] if boundaries.shape else 0, boundaries.shape[:-1]
    if not isinstance(count, int) or count == 0:
        raise Decline("boundaries of no known number")
    if rows and rows != shape[:-1]:
        raise Decline("boundaries in other rows than the values")
    if sorter is not None:
        if sorter.shape != boundaries.shape or sorter.dtype != "i64":
            raise Decline("a sorter of another shape or type")
        entry = sorter.at(point(sorter.shape))
        s.check(sorter.shape, Op("and", entry >= 0, entry < count), FAR)
    here = point(shape)
    row, inner = here[:-1] if rows else (), compute_type(common)

    def boundary(place: Ix) -> Expr:
        if sorter is not None:
            place = indirect(sorter.at((*row, place)), count)
        return met(boundaries.at((*row, place)), inner, common)

    value = element(values, here, shape, inner, common)
    known = _known_steps(s, count, shape[-1:] if rows else shape)
    place = _found(count, value, boundary, "gt" if right else "ge", known)
    return s.made(place)


def _known_steps(s: Scope, count: int, values: Shape) -> int:
    """The number of first steps that choose among boundaries that are read before the loop over these values."""
    if not s.target.in_order:  # threads have no loop to read them before
        return 1
    most = min(hint(numel(values)) // VALUES_FOR_ONE, count)
    return min(KNOWN_STEPS, (most + 1).bit_length() - 1)


def _found(count: int, value: Expr, boundary: Callable[[Ix], Expr], compare: str, known: int) -> Expr:
    """The first place whose boundary compares so with the value, if boundaries are in order: Note [Steps]."""
    narrow = "i32" if count <= MOST_NARROW else "i64"
    start: Expr = Const(0, narrow)
    end: Expr = Const(count, narrow)
    ahead = _ahead(count, known, boundary)
    lengths = {count}
    while lengths != {0}:
        middle = Op("shr", start + end, Const(1, narrow))
        if ahead:
            (here,), *ahead = ahead
        else:
            inside = Op("min", middle, Const(count - 1, narrow)) if 0 in lengths else middle
            here = boundary(indirect(cast(inside, "i64"), count))
        later = Op("not", Op(compare, here, value))
        if 0 in lengths:
            later = Op("and", later, start < end)
        ahead = [_halved(later, values) for values in ahead]
        start, end = Op("where", later, middle + 1, start), Op("where", later, end, middle)
        lengths = {half for length in lengths for half in (length // 2, length - length // 2 - 1) if half >= 0}
    return start


def _ahead(count: int, steps: int, boundary: Callable[[Ix], Expr]) -> list[list[Expr]]:
    """For each of the first steps the boundaries that it may compare with, those of earlier positions before others."""
    parts, found = [(0, count)], []
    for _ in range(steps):
        middles = [(start + end) // 2 for start, end in parts]
        found.append([boundary(index.const(middle)) for middle in middles])
        parts = [part for (start, end), at in zip(parts, middles, strict=True) for part in ((start, at), (at + 1, end))]
    return found


def _halved(later: Expr, values: list[Expr]) -> list[Expr]:
    half = len(values) // 2
    return [Op("where", later, far, near) for near, far in zip(values[:half], values[half:], strict=True)]

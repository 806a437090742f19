"""Two passes over rows that are not held, as one: what the second needs of the first is corrected afterwards.

The largest element and the sum of exponentials below it: each lane rescales its sum where it finds a larger element
(Milakov and Gimelshein, 2018). A sum and the distances from its mean: these may be from any number nearby, such as the
mean of a part of the row, since `sum (v - k)^2 = sum (v - mean)^2 + n (mean - k)^2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Const, Expr, Op, Ref, loads, walk
from framesmith_backends.ir.kernel import Accumulate, Kernel, RowPass
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import numel


@dataclass(frozen=True, slots=True)
class Exponentials:
    """`top` is the maximum of a value `v`, `total` the sum of `exp(v - top)`."""

    top: Accumulate
    total: Accumulate


@dataclass(frozen=True, slots=True)
class Distances:
    """`total` is the sum of a value `v` over `count` elements, `rest` that of `d = v - total / count`, `squares` that
    of `d * d`; there may be no `squares`."""

    total: Accumulate
    rest: Accumulate
    squares: Accumulate | None
    count: int


Joined = tuple[Exponentials, ...] | tuple[Distances, ...]


def joinable(kernel: Kernel, number: int) -> Joined:
    """The reductions of that pass and the next, if they may be one pass; () if not."""
    passes = kernel.passes[number : number + 2]
    return () if len(passes) < 2 else _joined(passes[0], passes[1], kernel.row)


def _joined(first: RowPass, second: RowPass, row: Sequence[Var]) -> Joined:
    others = [some for one in (first, second) for some in (*one.stores, *one.checks, *one.columns, *one.scans)]
    if not first.reductions or others:
        return ()
    written = {store.buffer for store in second.before}  # behind both passes then
    if any(load.source in written for load in loads(*first.values, *second.values)):
        return ()
    return _exponentials(first, second) or _distances(first, second, row)


def _exponentials(first: RowPass, second: RowPass) -> tuple[Exponentials, ...]:
    if len(first.reductions) != len(second.reductions):
        return ()
    pairs = [*zip(first.reductions, second.reductions, strict=True)]
    return tuple(Exponentials(*pair) for pair in pairs) if all(_is_sum_below(a, top) for top, a in pairs) else ()


def _is_sum_below(a: Accumulate, top: Accumulate) -> bool:
    if (a.kind, top.kind) != ("sum", "max") or DTYPES[top.value.dtype].kind != "f":
        return False
    return a.value is Op("exp", Op("sub", top.value, _ref(top)))


def _distances(first: RowPass, second: RowPass, row: Sequence[Var]) -> tuple[Distances, ...]:
    count = numel(v.size for v in row)
    if not isinstance(count, int):
        return ()
    found: list[Distances] = []
    taken: set[str] = set()
    for total in first.reductions:
        if total.kind != "sum" or total.value.dtype not in ("f32", "f64"):
            return ()
        distance = total.value - Op("div", _ref(total), Const(float(count), total.value.dtype))
        rest = _sum_of(distance, second)
        squares = _sum_of(distance * distance, second)
        if rest is None:
            return ()
        taken |= {a.name for a in (rest, squares) if a is not None}
        found.append(Distances(total, rest, squares, count))
    sums = {_ref(d.total) for d in found}
    others = [a.value for a in second.reductions if a.name not in taken]
    return () if any(node in sums for node in walk(*others)) else tuple(found)


def _ref(a: Accumulate) -> Ref:
    return Ref(a.name, a.value.dtype)


def _sum_of(value: Expr, one: RowPass) -> Accumulate | None:
    return next((a for a in one.reductions if a.kind == "sum" and a.value is value), None)

"""Means and variances: by the corrected two-pass algorithm, by one pass in a wider type, and in parts.

They are done in parts where there are fewer results than threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from framesmith_backends.ir.dtypes import DTYPES, compute_type, is_float
from framesmith_backends.ir.expr import Const, Expr, Op, number
from framesmith_backends.ir.reduction_splits import lies_along, reduces_rows, split_of
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.size import Size, Sym, Undecided, extreme, hint, numel
from framesmith_backends.lower.compute.reductions import Dims, as_divisor, count, dims_of, stored
from framesmith_backends.lower.movement.views import reshaped
from framesmith_backends.lower.registry import Rule, add_row
from framesmith_backends.lower.scope import Decline, Scope
from framesmith_backends.lower.tensor import Shape, Tensor, axes_of, axis, point
from framesmith_backends.target import SplitPolicy

#: Reads of an element where moments are not computed in parts: for the mean, for distances from it, and for what these
#: are used for.
READS = 3


def moments(s: Scope, x: Tensor, dims: Sequence[int], correction: float, within: str) -> tuple[Tensor, Tensor]:
    """(mean, variance) over dimensions that are kept, without what rounding the mean adds to them.

    The corrected two-pass algorithm (Chan, Golub and LeVeque, 1983): distances from the exact mean would sum to 0.
    Within a type that is wider than the elements' one pass is enough, see `_wide_moments`. Where there is work for more
    threads than there are results, parts are done so, and then their means.
    """
    divisor = _less(count(x, dims), correction)
    if within != compute_type(x.dtype) and _is_positive(count(x, dims)):
        return _wide_moments(s, x, dims, divisor, within)
    parts = _in_parts(s, x, dims)
    if parts is None:
        mean, squares = _mean_and_squares(s, x, dims, within)
    else:
        split, inner, outer = parts
        means, inside = _mean_and_squares(s, split, inner, within)
        center, between = _mean_and_squares(s, means, outer, within)
        total, size = s.reduce("sum", inside, outer, True, within), as_divisor(count(split, inner))
        kept = _kept_shape(x, dims)
        squares = reshaped(s.compute(lambda t, b: t + b * size, total, between, dtype=within), kept)
        mean = reshaped(center, kept)
    return mean, s.compute(lambda v: v / divisor, squares, dtype=within)


def _kept_shape(x: Tensor, dims: Sequence[int]) -> Shape:
    return tuple(1 if k in dims else size for k, size in enumerate(x.shape))


def _at_end(x: Tensor, dims: Sequence[int], *, last: bool) -> Tensor:
    """The first or last elements along dimensions that are kept."""
    ends = [index.const(size - 1 if last else 0) for size in x.shape]
    where = [end if k in dims else at for k, (end, at) in enumerate(zip(ends, point(x.shape), strict=True))]
    return x.viewed(_kept_shape(x, dims), where)


def _in_parts(s: Scope, x: Tensor, dims: Sequence[int]) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]] | None:
    """The tensor with what it is reduced over cut in parts: the dimensions of a part, and those of the parts."""
    sizes = [n for n in x.shape if isinstance(n, int)]
    if s.target.statistics is None or not sizes or len(sizes) < len(x.shape):
        return None
    over = sorted(d % len(sizes) for d in dims)
    axes = axes_of(x.shape)
    along = lies_along(x.at(point(x.shape)), s.program.layouts, [v for v in axes if v is not None])
    lane = None if along is None else axes.index(along)  # the dimension along which elements lie side by side in memory
    parts = _parts(s.target.statistics, s, x, over, lane)
    if not parts:
        return None
    # Each new dimension, with the one that it is of and how far a step goes along that: those of parts come first, but
    # last of what is kept the one along which what is read lies side by side.
    of_results = [(k, n, 1) for k, n in enumerate(sizes) if k not in over]
    of_parts = [(k, many, sizes[k] // many) for k, many in sorted(parts.items()) if many != 1]
    of_elements = [(k, length, 1) for k in over if (length := sizes[k] // parts.get(k, 1)) != 1]
    beside = [one for one in of_parts if one[0] == lane and one[2] == 1]
    made = [*(one for one in of_parts if one not in beside), *of_results, *beside, *of_elements]
    shape = tuple(size for _, size, _ in made)
    here = list(zip(point(shape), made, strict=True))
    where = [index.total((at, step) for at, (dim, _, step) in here if dim == k) for k in range(len(sizes))]
    inner = range(len(made) - len(of_elements), len(made))
    return x.viewed(shape, where), tuple(inner), tuple(made.index(one) for one in of_parts)


def _parts(by: SplitPolicy, s: Scope, x: Tensor, over: Sequence[int], lane: int | None) -> dict[int, int]:
    """In how many parts each of these dimensions is cut; of none where there is enough work without."""
    kept = numel(n for k, n in enumerate(x.shape) if k not in over)
    made = s.program.defs.get(x.source)
    in_rows = made is not None and reduces_rows(x.index, {axis(k, x.shape[k]) for k in over}, made.layout)
    in_columns = lane is not None and lane not in over and not in_rows  # see `use_row_layouts`
    parts = _cut(by, x, over, kept, in_columns)
    if lane is not None and lane in over and parts.get(lane) == x.shape[lane]:
        # Now there are columns of results, and fewer units of work for it.
        parts = {lane: parts[lane]} | (_cut(by, x, [k for k in over if k != lane], kept * parts[lane], True) or parts)
    return parts


def _cut(by: SplitPolicy, x: Tensor, over: Sequence[int], kept: Size, in_columns: bool) -> dict[int, int]:
    cut = split_of([x.shape[k] for k in over], kept, in_columns, READS * DTYPES[x.dtype].itemsize, by)
    if cut is None:
        return {}
    whole = {over[place]: hint(x.shape[over[place]]) for place in cut.whole}
    return whole | {over[place]: many for place, many in cut.parts.items()}


def _mean_and_squares(s: Scope, x: Tensor, dims: Sequence[int], within: str) -> tuple[Tensor, Tensor]:
    """The mean over dimensions that are kept, and the sum of squared distances from it."""
    n = as_divisor(count(x, dims))
    total = s.reduce("sum", x, dims, True, within)
    center = s.compute(lambda v: v / n, total, dtype=within)
    squares = s.reduce_formula("sum", _squared_distance, (x, center), x.shape, dims, True, within)
    rest = s.reduce_formula("sum", lambda v, m: v - m, (x, center), x.shape, dims, True, within)
    infinite = Const(math.inf, within)

    def mean(m: Expr, d: Expr) -> Expr:
        return Op("where", Op("lt", Op("abs", d), infinite), m + d / n, m)

    def exact(v: Expr, d: Expr) -> Expr:
        return Op("where", Op("lt", v, infinite), Op("max", v - d * (d / n), Const(0, within)), v)

    return s.compute(mean, center, rest, dtype=within), s.compute(exact, squares, rest, dtype=within)


def _wide_moments(s: Scope, x: Tensor, dims: Sequence[int], divisor: float | Sym, within: str) -> tuple[Tensor, Tensor]:
    """The moments by sums of distances from the first element, and of their squares.

    The square of its own distance from the mean is one of those that the variance is made of, so what is taken away
    from the sum of squares is at most as many times the variance as there are elements.
    """
    n = as_divisor(count(x, dims))
    first = stored(s, _at_end(x, dims, last=False), within)
    distances = s.reduce_formula("sum", lambda v, f: v - f, (x, first), x.shape, dims, True, within)
    squares = s.reduce_formula("sum", _squared_distance, (x, first), x.shape, dims, True, within)
    mean = s.compute(lambda f, d: f + d / n, first, distances, dtype=within)

    def variance(v: Expr, d: Expr) -> Expr:
        exact = v - d * (d / n)
        return Op("where", Op("lt", exact, Const(0, within)), Const(0, within), exact) / divisor

    return mean, s.compute(variance, squares, distances, dtype=within)


def _less(n: Size, correction: float) -> float | Sym:
    """max(n - correction, 0)."""
    if isinstance(n, int):
        return max(n - correction, 0.0)
    if correction != int(correction):
        raise Decline("a correction that is no whole number, of a number of elements that changes")
    return as_divisor(extreme(n - int(correction), 0, True))


def _is_positive(n: Size) -> bool:
    try:
        return bool(n > 0)
    except Undecided:
        return False


def wide_type(s: Scope, dtype: str) -> str:
    """The type in which ATen's kernels for a device add up variances of float32: on the CPU float64, where squares of
    what float32 holds do not overflow."""
    within = compute_type(dtype)
    return within if within != "f32" or s.target.on_gpu else "f64"


def _squared_distance(v: Expr, center: Expr) -> Expr:
    d = v - center
    return d * d


def _statistics(*, root: bool, with_mean: bool) -> Rule:
    """The variance, or its `root`, which may be a number of a type that cannot hold the variance; and the mean."""

    def lowered(
        s: Scope, x: Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        less, dtype, shape = 1.0 if correction is None else float(correction), s.result.dtype, s.result.shape
        found = moments(s, x, dims_of(dim, x), less, wide_type(s, dtype))
        mean, variance = (reshaped(one, shape) for one in found)
        if root:
            spread = s.compute(lambda v: Op("sqrt", v), variance, dtype=dtype, within=variance.dtype)
        else:
            spread = stored(s, variance, dtype)
        return (spread, stored(s, _updated_mean(s, x, dim, mean), s.results[1].dtype)) if with_mean else spread

    return lowered


def _updated_mean(s: Scope, x: Tensor, dim: Dims, mean: Tensor) -> Tensor:
    """The mean as ATen's CPU kernel has it, which moves it with each element: once infinite, it is NaN at the next."""
    dims = dims_of(dim, x)
    n = count(x, dims)
    if s.target.on_gpu or not is_float(x.dtype) or not _is_positive(n):
        return mean
    last = reshaped(_at_end(x, dims, last=True), mean.shape)
    infinite = Const(math.inf, mean.dtype)

    def updated(m: Expr, v: Expr) -> Expr:
        is_last = Op("eq", Op("abs", v), infinite)
        later = Op("and", Op("eq", Op("abs", m), infinite), Op("not", is_last))
        moved = Op("where", later, Const(math.nan, m.dtype), m)
        if n == 1 or not isinstance(n, int):
            alone = is_last if n == 1 else Op("and", is_last, Op("eq", number(n, "i64"), Const(1, "i64")))
            moved = Op("where", alone, v, moved)
        return moved

    return s.compute(updated, mean, last, dtype=mean.dtype)


for _name, _root in (("var", False), ("std", True)):
    add_row(_statistics(root=_root, with_mean=False), f"{_name}.correction")
    add_row(_statistics(root=_root, with_mean=True), f"{_name}_mean.correction")

"""Lowering of reductions: sums, means, variances, extremes, any and all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from framesmith_backends.ir import index
from framesmith_backends.ir.dtypes import DTYPES, compute_type, is_float
from framesmith_backends.ir.expr import Const, Expr, Index, Op, number
from framesmith_backends.ir.size import Size, Sym, Undecided, extreme, product
from framesmith_backends.ir.splitting import cut_of, lies_along, reduces_rows
from framesmith_backends.lower.registry import rule
from framesmith_backends.lower.scope import Decline, Scope, as_stored, cast
from framesmith_backends.lower.tensor import Tensor, axis, point
from framesmith_backends.lower.views import reshaped

Dims = Sequence[int] | int | None


def dims_of(dims: Dims, x: Tensor) -> tuple[int, ...]:
    """The dimensions reduced, as non-negative numbers: all of them where none is named."""
    rank = len(x.shape)
    if isinstance(dims, int):
        dims = (dims,)
    if not dims:
        return tuple(range(rank))
    return tuple(d % rank if rank else 0 for d in dims)


def count(x: Tensor, dims: Sequence[int]) -> Size:
    return product(x.shape[d] for d in dims) if x.shape else 1


def as_divisor(n: Size) -> float | Sym:
    """A number of elements as floating values are divided by it."""
    return float(n) if isinstance(n, int) else n


def _less(n: Size, correction: float) -> float | Sym:
    """max(n - correction, 0)."""
    if isinstance(n, int):
        return max(n - correction, 0.0)
    if correction != int(correction):
        raise Decline("a correction that is no whole number, of a number of elements that changes")
    return as_divisor(extreme(n - int(correction), 0, True))


def stored(s: Scope, value: Tensor, dtype: str) -> Tensor:
    """The value converted to the type it is returned in."""
    return value if value.dtype == dtype else s.compute(lambda v: v, value, dtype=dtype, within=value.dtype)


def _accumulated(s: Scope, kind: str, x: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    """Elements are of the result's type before they are reduced, in a wider one if that is a half type."""
    inner, dtype = compute_type(s.result.dtype), s.result.dtype
    if x.dtype != dtype != inner:
        x = stored(s, x, dtype)
    return stored(s, s.reduce(kind, x, dims_of(dims, x), keepdim, inner), dtype)


@rule("sum", "sum.dim_IntList")
def sum_(s: Scope, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    return _accumulated(s, "sum", x, dim, keepdim)


@rule("prod", "prod.dim_int")
def prod(s: Scope, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    return _accumulated(s, "prod", x, dim, keepdim)


@rule("mean", "mean.dim")
def mean(s: Scope, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    inner = compute_type(s.result.dtype)
    dims = dims_of(dim, x)
    total = s.reduce("sum", x, dims, keepdim, inner)
    n = as_divisor(count(x, dims))
    return s.compute(lambda v: v / n, total, dtype=s.result.dtype)


@rule("amax")
def amax(s: Scope, x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return _extreme(s, "max", "any", x, dim, keepdim)


@rule("amin")
def amin(s: Scope, x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return _extreme(s, "min", "all", x, dim, keepdim)


@rule("max")
def max_(s: Scope, x: Tensor) -> Tensor:
    return _extreme(s, "max", "any", x, None, False)


@rule("min")
def min_(s: Scope, x: Tensor) -> Tensor:
    return _extreme(s, "min", "all", x, None, False)


def _extreme(s: Scope, kind: str, of_bools: str, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    return _accumulated(s, of_bools if x.dtype == "b1" else kind, x, dim, keepdim)


@rule("any", "any.dim", "any.dims")
def any_(s: Scope, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _truth(s, "any", x, dim, keepdim)


@rule("all", "all.dim", "all.dims")
def all_(s: Scope, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _truth(s, "all", x, dim, keepdim)


def _truth(s: Scope, kind: str, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if isinstance(dim, (list, tuple)) and not dim:  # along none, where sums are along all
        return s.compute(lambda v: cast(v, "b1"), x, dtype=s.result.dtype, within=x.dtype)
    return stored(s, s.reduce(kind, x, dims_of(dim, x), keepdim, "b1"), s.result.dtype)


#: How often elements are read where their moments are not computed in parts: for the mean, for distances from it, and
#: for what these are used for.
PASSES = 3


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
        kept = tuple(1 if k in dims else n for k, n in enumerate(x.shape))
        squares = reshaped(s.compute(lambda t, b: t + b * size, total, between, dtype=within), kept)
        mean = reshaped(center, kept)
    return mean, s.compute(lambda v: v / divisor, squares, dtype=within)


def _in_parts(s: Scope, x: Tensor, dims: Sequence[int]) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]] | None:
    """The tensor with what it is reduced over cut in parts: the dimensions of a part, and those of the parts."""
    over = sorted(d % len(x.shape) for d in dims)
    if s.machine.splitting is None or not all(isinstance(n, int) for n in x.shape):
        return None
    kept = product(n for k, n in enumerate(x.shape) if k not in over)
    where = point(x.shape)
    lane = lies_along(x.at(where), s.program.layouts, [axis(k, n) for k, n in enumerate(x.shape) if n != 1])
    in_columns = lane is not None and all(lane is not axis(k, x.shape[k]) for k in over)
    if x.source in s.program.defs and reduces_rows(where, {axis(k, x.shape[k]) for k in over}, x.shape):
        in_columns = False  # see `schedule/rows`
    read = PASSES * DTYPES[x.dtype].itemsize
    cut = cut_of([x.shape[k] for k in over], kept, in_columns, read, s.machine.splitting)
    if cut is None:
        return None
    # Each new dimension, with the one that it is of and how far a step goes along that: those of parts come first.
    of_parts, of_results, of_elements = [], [(k, n, 1) for k, n in enumerate(x.shape) if k not in over], []
    for place, k in enumerate(over):
        parts = x.shape[k] if place in cut.whole else cut.parts.get(place, 1)
        length = x.shape[k] // parts
        of_parts += [(k, parts, length)] if parts != 1 else []
        of_elements += [(k, length, 1)] if length != 1 else []
    made = [*of_parts, *of_results, *of_elements]
    shape = tuple(size for _, size, _ in made)
    here = list(zip(point(shape), made, strict=True))
    places = [index.total((at, step) for at, (dim, _, step) in here if dim == k) for k in range(len(x.shape))]
    inner = range(len(made) - len(of_elements), len(made))
    return x.viewed(shape, tuple(places)), tuple(inner), tuple(range(len(of_parts)))


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
    place = tuple(index.ZERO if k in dims else at for k, at in enumerate(point(x.shape)))
    first = x.viewed(tuple(1 if k in dims else size for k, size in enumerate(x.shape)), place)
    first = stored(s, first, within)
    distances = s.reduce_formula("sum", lambda v, f: v - f, (x, first), x.shape, dims, True, within)
    squares = s.reduce_formula("sum", _squared_distance, (x, first), x.shape, dims, True, within)
    mean = s.compute(lambda f, d: f + d / n, first, distances, dtype=within)

    def variance(v: Expr, d: Expr) -> Expr:
        exact = v - d * (d / n)
        return Op("where", Op("lt", exact, Const(0, within)), Const(0, within), exact) / divisor

    return mean, s.compute(variance, squares, distances, dtype=within)


def _is_positive(n: Size) -> bool:
    try:
        return bool(n > 0)
    except Undecided:
        return False


def wide_type(s: Scope, dtype: str) -> str:
    """The type in which ATen's kernels for a device add up variances of float32: on the CPU float64, where squares of
    what float32 holds do not overflow."""
    within = compute_type(dtype)
    return within if within != "f32" or s.machine.on_gpu else "f64"


def _squared_distance(v: Expr, center: Expr) -> Expr:
    d = v - center
    return d * d


@rule("var.correction")
def var(s: Scope, x: Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    return stored(s, _moments(s, x, dim, correction)[1], s.result.dtype)


@rule("std.correction")
def std(s: Scope, x: Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    return _root(s, _moments(s, x, dim, correction)[1])


@rule("var_mean.correction")
def var_mean(
    s: Scope, x: Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    mean, variance = _moments(s, x, dim, correction)
    return stored(s, variance, s.results[0].dtype), stored(s, _updated_mean(s, x, dim, mean), s.results[1].dtype)


def _root(s: Scope, variance: Tensor) -> Tensor:
    """The deviation: it may be a number of a type that cannot hold the variance."""
    return s.compute(lambda v: Op("sqrt", v), variance, dtype=s.results[0].dtype, within=variance.dtype)


def _moments(s: Scope, x: Tensor, dim: Dims, correction: Any) -> tuple[Tensor, Tensor]:
    """(mean, variance) in the shape of the result."""
    less = 1.0 if correction is None else float(correction)
    mean, variance = moments(s, x, dims_of(dim, x), less, wide_type(s, s.results[0].dtype))
    return reshaped(mean, s.results[0].shape), reshaped(variance, s.results[0].shape)


@rule("std_mean.correction")
def std_mean(
    s: Scope, x: Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    mean, variance = _moments(s, x, dim, correction)
    return _root(s, variance), stored(s, _updated_mean(s, x, dim, mean), s.results[1].dtype)


def _updated_mean(s: Scope, x: Tensor, dim: Dims, mean: Tensor) -> Tensor:
    """The mean as ATen's CPU kernel has it, which moves it with each element: once infinite, it is NaN at the next."""
    dims = dims_of(dim, x)
    n = count(x, dims)
    if s.machine.on_gpu or not is_float(x.dtype) or not _is_positive(n):
        return mean
    ends = tuple(
        index.const(size - 1) if k in dims else at
        for k, (size, at) in enumerate(zip(x.shape, point(x.shape), strict=True))
    )
    last = reshaped(x.viewed(tuple(1 if k in dims else size for k, size in enumerate(x.shape)), ends), mean.shape)
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


@rule("linalg_vector_norm")
def vector_norm(
    s: Scope, x: Tensor, order: int | float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> Tensor:
    if order not in (1, 2) or not is_float(x.dtype):
        raise Decline(f"a vector norm of order {order}")
    within = compute_type(s.result.dtype)
    squared = not x.shape and (isinstance(dim, int) or bool(dim))  # by ATen: a number whose dimension is named
    if not squared and count(x, dims_of(dim, x)) == 1:  # whose square may overflow
        return s.compute(lambda v: Op("abs", v), reshaped(x, s.result.shape), dtype=s.result.dtype, within=within)
    step = (lambda v: v * v) if order == 2 else (lambda v: Op("abs", v))
    total = s.reduce_formula("sum", step, (x,), x.shape, dims_of(dim, x), keepdim, within)
    finish = (lambda v: Op("sqrt", v)) if order == 2 else (lambda v: v)
    return s.compute(finish, total, dtype=s.result.dtype)


@rule("logsumexp")
def logsumexp(s: Scope, x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    if not is_float(x.dtype) or not x.shape:
        raise Decline("logsumexp of integers or of a single number")
    within = compute_type(x.dtype)
    dims = dims_of(dim, x)

    def step(v: Expr) -> Expr:
        return as_stored(v, s.result.dtype)  # operation by operation, as ATen computes it

    def finite(v: Expr) -> Expr:
        return Op("where", Op("eq", Op("abs", v), Const(math.inf, v.dtype)), Const(0, v.dtype), v)

    top = s.compute(finite, s.reduce("max", x, dims, True, within), dtype=within)
    total = s.reduce_formula("sum", lambda v, m: step(Op("exp", step(v - m))), (x, top), x.shape, dims, keepdim, within)
    flat = s.compute(finite, s.reduce("max", x, dims, keepdim, within), dtype=within)
    return s.compute(lambda v, m: step(Op("log", step(v))) + m, total, flat, dtype=s.result.dtype)


@rule("argmax")
def argmax(s: Scope, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _first_place(s, "max", x, dim)[1]


@rule("argmin")
def argmin(s: Scope, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _first_place(s, "min", x, dim)[1]


@rule("max.dim")
def max_dim(s: Scope, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _first_place(s, "max", x, dim)


@rule("min.dim")
def min_dim(s: Scope, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _first_place(s, "min", x, dim)


def _first_place(s: Scope, kind: str, x: Tensor, dim: int | None) -> tuple[Tensor, Tensor]:
    """The extreme along a dimension, and its first place there: the least of the places that hold it.

    A NaN is the extreme of those beside it. Without a dimension, places are those of all elements in their order.
    Elements are compared with what was found among them: they are read from memory, since what is computed twice may be
    rounded in two ways.
    """
    if x.source in s.program.defs:
        s.program.kept.add(x.source)
    if x.dtype == "b1":
        raise Decline("places of extremes of bools")
    inner, dims, shape = compute_type(x.dtype), dims_of(dim, x), x.shape
    found = s.reduce(kind, x, dims, True, inner)
    here = point(shape)
    place, length = index.linearize(here, shape), product(shape)
    if dim is not None and shape:
        place, length = here[dims[0]], shape[dims[0]]
    narrow = "i32" if isinstance(length, int) and length < 1 << 31 else "i64"

    def places(value: Expr, extreme: Expr) -> Expr:
        is_there = Op("eq", value, extreme)
        if is_float(inner):
            is_there = Op("or", is_there, Op("ne", value, value))
        return Op("where", is_there, cast(Index(place), narrow), number(length, narrow))

    candidates = s.compute(places, x, found, shape=shape, dtype=narrow, within=inner)
    first = s.reduce("min", candidates, dims, True, narrow)
    value = reshaped(found, s.results[0].shape)
    return stored(s, value, x.dtype), stored(s, reshaped(first, s.results[-1].shape), "i64")

"""Lowering of reductions (sums, means, extremes, norms, any and all) and of cumulative ones.

On the CPU kernels scan sums and products down columns, a vector of lines at once; other scans are native operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from framesmith_backends.ir.dtypes import compute_type, is_float
from framesmith_backends.ir.expr import Const, Expr, Index, Op, cast, number
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.size import Size, Sym, hint, numel
from framesmith_backends.lower.movement.views import reshaped
from framesmith_backends.lower.registry import Rule, add_row, rule
from framesmith_backends.lower.scope import Decline, Scope, as_stored
from framesmith_backends.lower.tensor import Tensor, element, point

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
    return numel(x.shape[d] for d in dims) if x.shape else 1


def as_divisor(n: Size) -> float | Sym:
    """A number of elements as floating values are divided by it."""
    return float(n) if isinstance(n, int) else n


def stored(s: Scope, value: Tensor, dtype: str) -> Tensor:
    """The value converted to the type it is returned in."""
    return value if value.dtype == dtype else s.copied(value, dtype)


def _accumulated(kind: str, of_bools: str = "", default: Dims = None) -> Rule:
    """Elements are of the result's type before they are reduced, in a wider one if that is a low-precision type."""

    def lowered(s: Scope, x: Tensor, dim: Dims = default, keepdim: bool = False, *, dtype: object = None) -> Tensor:
        own = of_bools if of_bools and x.dtype == "b1" else kind
        inner, wanted = compute_type(s.result.dtype), s.result.dtype
        if x.dtype != wanted != inner:
            x = stored(s, x, wanted)
        return stored(s, s.reduce(own, x, dims_of(dim, x), keepdim, inner), wanted)

    return lowered


def _truth(kind: str) -> Rule:
    def lowered(s: Scope, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        if isinstance(dim, (list, tuple)) and not dim:  # along none, where sums are along all
            return s.compute(lambda v: cast(v, "b1"), x, dtype=s.result.dtype, within=x.dtype)
        return stored(s, s.reduce(kind, x, dims_of(dim, x), keepdim, "b1"), s.result.dtype)

    return lowered


add_row(_accumulated("sum"), "sum", "sum.dim_IntList")
add_row(_accumulated("prod"), "prod", "prod.dim_int")
add_row(_accumulated("max", "any", ()), "amax")
add_row(_accumulated("min", "all", ()), "amin")
add_row(_accumulated("max", "any"), "max")
add_row(_accumulated("min", "all"), "min")
add_row(_truth("any"), "any", "any.dim", "any.dims")
add_row(_truth("all"), "all", "all.dim", "all.dims")


@rule("mean", "mean.dim")
def mean(s: Scope, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    inner = compute_type(s.result.dtype)
    dims = dims_of(dim, x)
    total = s.reduce("sum", x, dims, keepdim, inner)
    n = as_divisor(count(x, dims))
    return s.compute(lambda v: v / n, total, dtype=s.result.dtype)


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


def _extreme_and_index(s: Scope, kind: str, x: Tensor, dim: int | None) -> tuple[Tensor, Tensor]:
    """Return the extreme along a dimension, and the least index at which it lies.

    A NaN is the extreme of those beside it. Without a dimension, indices count all elements in their order.
    Elements are compared with what was found among them: they are read from memory, since what is computed twice may be
    rounded in two ways.
    """
    if x.source in s.program.defs:
        s.program.kept.add(x.source)
    if x.dtype == "b1":
        raise Decline("indices of extremes of bools")
    inner, dims, shape = compute_type(x.dtype), dims_of(dim, x), x.shape
    found = s.reduce(kind, x, dims, True, inner)
    here = point(shape)
    at, length = index.linearize(here, shape), numel(shape)
    if dim is not None and shape:
        at, length = here[dims[0]], shape[dims[0]]
    narrow = "i32" if isinstance(length, int) and length < 1 << 31 else "i64"

    def indices(value: Expr, extreme: Expr) -> Expr:
        is_there = Op("eq", value, extreme)
        if is_float(inner):
            is_there = Op("or", is_there, Op("ne", value, value))
        return Op("where", is_there, cast(Index(at), narrow), number(length, narrow))

    candidates = s.compute(indices, x, found, shape=shape, dtype=narrow, within=inner)
    first = s.reduce("min", candidates, dims, True, narrow)
    value = reshaped(found, s.results[0].shape)
    return stored(s, value, x.dtype), stored(s, reshaped(first, s.results[-1].shape), "i64")


def _with_index(kind: str) -> Rule:
    return lambda s, x, dim, keepdim=False: _extreme_and_index(s, kind, x, dim)


def _index(kind: str) -> Rule:
    return lambda s, x, dim=None, keepdim=False: _extreme_and_index(s, kind, x, dim)[1]


for _kind in ("max", "min"):
    add_row(_with_index(_kind), f"{_kind}.dim")
    add_row(_index(_kind), f"arg{_kind}")

#: Fewer lines of more elements leave a GPU idle: ATen's kernel for one line works across blocks.
FEW_LINES, MANY_ELEMENTS = 4, 1 << 15
#: On the CPU, the fewest lines side by side that are worth a vector, and the types of results.
FEWEST_COLUMNS, COLUMN_TYPES = 4, ("f32", "f64", "bf16", "f16", "i64")
#: Indices along shorter dimensions are scanned in 32 bits.
MOST_IN_32_BITS = (1 << 31) - 1


def _dim(s: Scope, x: Tensor, dim: int, kind: str) -> int:
    """The dimension that is scanned, where kernels do that as fast as ATen."""
    dim %= len(x.shape) or 1
    if not s.target.scans_rows:
        if kind not in ("sum", "prod") or s.result.dtype not in COLUMN_TYPES:
            raise Decline(f"a {kind} scan in {s.result.dtype}, which this target's kernels do not do")
        if hint(numel(x.shape[dim + 1 :])) < FEWEST_COLUMNS:
            raise Decline("a scan along rows, which this target's kernels do not do")
        return dim
    size = hint(x.shape[dim]) if x.shape else 1
    elements = hint(s.result.numel)
    if elements > MANY_ELEMENTS and elements < FEW_LINES * size:
        raise Decline("few long lines")
    return dim


def _scanned(s: Scope, kind: str, x: Tensor, dim: int) -> Tensor:
    """Elements are of the result's type before they are scanned: in float32 if that is a low-precision type.

    On the CPU float32 is scanned in float64, as ATen does.
    """
    dim, inner, dtype = _dim(s, x, dim, kind), compute_type(s.result.dtype), s.result.dtype
    if dtype == "f32" and not s.target.scans_rows:
        inner = "f64"
    if x.dtype != dtype != inner:
        x = stored(s, x, dtype)
    return stored(s, s.scan(kind, x, dim, inner), dtype)


def _extremes(s: Scope, kind: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The extremes, and the index of the last element so far that is one, or NaN."""
    dim, inner = _dim(s, x, dim, kind), compute_type(x.dtype)
    extremes = s.scan(kind, x, dim, inner)
    where = point(x.shape)
    narrow = bool(x.shape) and isinstance(x.shape[dim], int) and hint(x.shape[dim]) <= MOST_IN_32_BITS
    integer = "i32" if narrow else "i64"
    value, here = element(x, where, x.shape, inner), Index(where[dim] if x.shape else index.ZERO)
    best: Expr = Op("eq", value, extremes.at(where))
    if is_float(inner):
        best = Op("or", best, Op("isnan", value))
    last = Op("where", best, cast(here, integer), cast(Index(index.ZERO), integer))
    indices = s.scan("max", s.elementwise(x.shape, last), dim, integer)
    return stored(s, extremes, x.dtype), stored(s, indices, "i64")


def _row(lowered: Callable[..., Tensor | tuple[Tensor, Tensor]], kind: str) -> Rule:
    return lambda s, x, dim, *, dtype=None: lowered(s, kind, x, dim)


add_row(_row(_scanned, "sum"), "cumsum")
add_row(_row(_scanned, "prod"), "cumprod")
add_row(_row(_scanned, "logsumexp"), "logcumsumexp")
add_row(_row(_extremes, "max"), "cummax")
add_row(_row(_extremes, "min"), "cummin")

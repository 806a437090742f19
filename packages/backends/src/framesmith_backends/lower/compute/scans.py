"""Lowering of cumulative sums, products, extremes and log-sum-exps.

On the CPU kernels scan sums and products down columns, a vector of lines at once; other scans are native operators.
"""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.ir.dtypes import compute_type, is_float
from framesmith_backends.ir.expr import Expr, Index, Op, cast
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.size import hint, numel
from framesmith_backends.lower.compute.reductions import stored
from framesmith_backends.lower.registry import Rule, add_row
from framesmith_backends.lower.scope import Decline, Scope
from framesmith_backends.lower.tensor import Tensor, element, point

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
            raise Decline(f"a {kind} scan in {s.result.dtype}, which kernels of CPUs do not do")
        if hint(numel(x.shape[dim + 1 :])) < FEWEST_COLUMNS:
            raise Decline("a scan along rows, which kernels of CPUs do not do")
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

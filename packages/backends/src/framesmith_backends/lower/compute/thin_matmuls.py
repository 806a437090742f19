"""Batched matmuls without depth, or by a short vector: elements and short sums, which fuse with what is around."""

from __future__ import annotations

from framesmith_backends.ir.dtypes import compute_type, is_float
from framesmith_backends.lower.registry import rule
from framesmith_backends.lower.scope import Decline, Scope
from framesmith_backends.lower.tensor import Tensor, point

#: The longest vector: a matmul of more depth is bound by reading the matrix, as ours would be.
LONGEST_VECTOR = 32


@rule("bmm")
def _bmm(s: Scope, a: Tensor, b: Tensor) -> Tensor:
    (batch, rows, depth), columns = a.shape, b.shape[2]
    if not is_float(a.dtype):
        raise Decline("a batch of matmuls of integers")
    inner = compute_type(a.dtype)
    if depth == 1:
        return s.compute(lambda x, y: x * y, a, b, shape=(batch, rows, columns), dtype=a.dtype)
    if not isinstance(depth, int) or depth > LONGEST_VECTOR or 1 not in (rows, columns):
        raise Decline("a batch of matmuls")
    shape = (batch, rows, columns, depth)
    n, row, column, along = point(shape)
    left, right = (
        Tensor(t.source, shape, t.dtype, t.viewed(shape, where).index)
        for t, where in (
            (a, (n, row, along)),
            (b, (n, along, column)),
        )
    )
    found = s.reduce_formula("sum", lambda x, y: x * y, (left, right), shape, [3], False, inner)
    return found if inner == a.dtype else s.copied(found, a.dtype)

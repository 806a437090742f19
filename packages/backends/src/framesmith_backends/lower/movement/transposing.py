"""Tensors that are read across their rows: transposing copies, which are kernels of their own, walked in tiles."""

from __future__ import annotations

from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.size import Sym, hint
from framesmith_backends.lower.scope import Scope
from framesmith_backends.lower.tensor import Tensor, axis

# From this many elements on, a transposing copy is a kernel of its own, walked in tiles.
TILED_COPY = 4096


def is_transposing(s: Scope, x: Tensor) -> bool:
    """Whether the source and the result are contiguous along different dimensions, and large."""
    if hint(s.result.numel) < TILED_COPY:
        return False
    source = s.program.layouts[x.source]
    flat = index.total(zip(x.index, source.strides, strict=True))
    steps = [index.coefficient(flat, axis(k, size)) for k, size in enumerate(x.shape)]
    inner = [k for k, (step, size) in enumerate(zip(s.result.strides, x.shape, strict=True)) if step == 1 and size != 1]
    return bool(inner) and steps[inner[-1]] not in (0, 1) and 1 in steps


def walks_in_tiles(s: Scope) -> bool:
    """Whether copies of the result's sizes are kernels that walk in tiles, as those of the CPU are."""
    return not isinstance(s.result.numel, Sym) and s.target.in_order


def transposed_copy(s: Scope, x: Tensor) -> Tensor:
    """The tensor with the result's rows, in memory."""
    copied = s.compute(lambda v: v, x, dtype=x.dtype)
    s.program.alone.add(copied.source)
    return copied


def along_rows(s: Scope, x: Tensor) -> Tensor:
    """The tensor for a rule that reads it several times: copied first where it would be read across rows each time."""
    return transposed_copy(s, x) if walks_in_tiles(s) and is_transposing(s, x) else x

"""Operands of matmuls in Triton source, by rows, columns and masks, and the functions written for their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr
from framesmith_backends.ir.fused.attention import AttentionTile
from framesmith_backends.ir.fused.matmul import TileShape
from framesmith_backends.ir.kernel import Kernel, Param, RowPass, Store
from framesmith_backends.ir.program import BufferView
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.render.triton.state import Writing
from framesmith_backends.render.triton.tile import fixed

#: `tl.dot` takes no fewer elements along any side.
LEAST_SIDE = 16


def side(length: int) -> int:
    """The power of two that covers a side of a matmul."""
    return max(LEAST_SIDE, 1 << (length - 1).bit_length())


def precision(dtype: str) -> str:
    """The argument of `tl.dot` for float32, which comes here where torch's settings allow it to be rounded."""
    return ', input_precision="tf32"' if dtype == "f32" else ""


def masked(*masks: str | None, load: bool = True) -> str:
    """The arguments of a load, or of a store, that leave out what lies beyond one of the masks."""
    mask = " & ".join(f"({one})" for one in masks if one)
    return f", mask={mask}{', other=0.0' if load else ''}" if mask else ""


def short(name: str, length: int) -> str | None:
    """The mask of a side that `side` pads; None where all of it is there."""
    return f"({name} < {length})" if length != side(length) else None


def steps_of(view: BufferView) -> list[int]:
    """The strides, 0 along dimensions of one element."""
    return [fixed(step) if n != 1 else 0 for n, step in zip(view.shape, view.strides, strict=True)]


def address(w: Writing, view: BufferView, first: str, second: str) -> str:
    """The addresses of elements of a view (batch, first, second)."""
    names = zip(("batch", first, second), steps_of(view), strict=True)
    start = [str(view.offset)] if view.offset != 0 else []
    return f"{w.pointers[view.source]} + ({' + '.join([*start, *(f'{name} * {step}' for name, step in names)])})"


def last_index(view: BufferView, more: tuple[int, int, int]) -> int:
    """An index that no element exceeds of a view that has so many more elements along each dimension."""
    lengths = zip(view.shape, more, view.strides, strict=True)
    return fixed(view.offset) + sum((fixed(n) + extra) * abs(fixed(step)) for n, extra, step in lengths)


def kernel_over(name: str, params: tuple[Param, ...], loops: tuple[Var, ...], *values: tuple[str, Expr]) -> Kernel:
    """The values, each stored to a buffer, as a kernel that is never launched: expressions are written for it."""
    where = index.linearize([index.of(v) for v in loops], [v.size for v in loops])
    stores = tuple(Store(buffer, where, value) for buffer, value in values)
    return Kernel(name, params, loops, (), None, (RowPass((), (), stores),))


def name_loop(w: Writing, var: Var, name: str) -> None:
    """Name a loop of the tile, and the mask of what of the tile lies in it."""
    w.level_of[var] = len(w.scopes) - 1
    w.variables[var] = w.fresh(name, w.here)
    axis = w.tile.of(var)
    assert axis is not None
    if fixed(var.size) % axis.block:
        w.masks[var] = w.fresh(f"{w.variables[var]} < {var.size}", w.here)


def function_of(
    w: Writing, name: str, params: Sequence[Param], grid: int, tile: AttentionTile | TileShape
) -> TritonKernel:
    """The function whose lines were written, of so many programs."""
    source = w.source(f"def {name}({', '.join(f'p{k}' for k in range(len(params)))}):")
    pointers = tuple(DTYPES[param.dtype].pointer for param in params)
    return replace(TritonKernel(name, source, grid, tile.columns, tile.warps, pointers), stages=tile.stages)

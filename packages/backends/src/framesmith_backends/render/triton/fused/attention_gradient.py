"""Gradients of attention as the source of a Triton function: a program for some of its own side, over all of the other.

Scores lie in a tile as rows of the own side: of keys as well, so that what is computed of a matmul is a factor of the
next one as it is. Blocks in which nothing is seen are passed by, as in the forward pass: Note [First and last].
"""

from __future__ import annotations

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient, SideSum
from framesmith_backends.ir.kernel import Kernel, Pass, Store
from framesmith_backends.ir.program import BufferView
from framesmith_backends.ir.symbolic import index
from framesmith_backends.render.triton.emit import emit
from framesmith_backends.render.triton.fused.attention import (
    bounds,
    close_blocks,
    open_blocks,
    precision,
    short,
    side,
    written,
)
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.render.triton.state import Scope, Writing
from framesmith_backends.render.triton.tile import Axis, Tile, reaches


def render_attention_gradient(item: FusedAttentionGradient, name: str) -> TritonKernel:
    """The Triton form of gradients of attention in its tile."""
    tile = item.tile
    down = -(-_size(item.own.size) // tile.rows)
    integer = "tl.int64" if _reaches(item) else "tl.int32"
    w = Writing(
        _values(item), Tile((Axis(item.own, tile.rows), Axis(item.other, tile.columns))), [Scope([], 1)], integer
    )
    for k, param in enumerate(item.params):
        w.pointers[param.name] = f"p{k}"
    _head(w, item, down)
    _blocks(w, item, bounds(w, item.seen, item.own, item.other, tile))
    for k, one in enumerate(item.sums):
        _result(w, item, k, one)
    return written(w, name, item.params, down * _size(item.batch.size), tile)


def _size(size: object) -> int:
    assert isinstance(size, int)
    return size


def _values(item: FusedAttentionGradient) -> Kernel:
    """What is summed up as a kernel over all of it, which is never launched: what expressions are written for."""
    loops = (item.batch, item.own, item.other)
    where = index.linearize([index.of(v) for v in loops], [v.size for v in loops])
    stores = tuple(Store(one.result.source, where, one.value) for one in item.sums)
    return Kernel(item.name, item.params, loops, (), None, (Pass((), (), stores),))


def _reaches(item: FusedAttentionGradient) -> bool:
    """Whether a place may be beyond 32 bits, tails of tiles included."""
    far = reaches(_values(item))
    for place in (*(place for place, _ in item.operands), *(one.result for one in item.sums)):
        last = place.offset
        for n, extra, step in zip(place.shape, (1, 256, 256), place.strides, strict=True):
            last += (_size(n) + extra) * abs(_size(step))
        far = far or _size(last) >= 1 << 31
    return far


def _head(w: Writing, item: FusedAttentionGradient, down: int) -> None:
    """What the program has of its own side, and sums of nothing."""
    tile = item.tile
    w.line(f"pid = tl.program_id(0).to({w.integer})")
    w.line(f"batch = pid // {down}")
    # What sees most, or is seen most, is begun first where what comes later is hidden.
    block = f"{down - 1} - pid % {down}" if item.last_first else f"pid % {down}"
    w.line(f"rows = ({block}) * {tile.rows} + tl.arange(0, {tile.rows})")
    for length in sorted(_lengths(item)):
        w.line(f"depth{length} = tl.arange(0, {side(length)}).to({w.integer})")
    w.level_of[item.batch] = w.level_of[item.own] = 0
    w.variables[item.batch] = "batch"
    w.variables[item.own] = w.fresh("rows[:, None]", w.here)
    if _size(item.own.size) % tile.rows:
        w.masks[item.own] = w.fresh(f"{w.variables[item.own]} < {item.own.size}", w.here)
    for k, matmul in enumerate(item.matmuls):
        w.line(f"own{k} = {_read(w, matmul.own, 'rows[:, None]', w.masks.get(item.own))}")
    for k, one in enumerate(item.sums):
        w.line(f"sum{k} = tl.zeros([{tile.rows}, {side(_size(one.factor.shape[2]))}], tl.float32)")


def _lengths(item: FusedAttentionGradient) -> set[int]:
    own = {_size(matmul.own.shape[2]) for matmul in item.matmuls}
    return own | {_size(one.factor.shape[2]) for one in item.sums}


def _read(w: Writing, place: BufferView, rows: str, within: str | None) -> str:
    """The elements of a place at these rows, beside each other."""
    where, mask = _where(w, place, rows, within)
    return f"tl.load({where}{f', mask={mask}, other=0.0' if mask else ''})"


def _where(w: Writing, place: BufferView, rows: str, within: str | None) -> tuple[str, str]:
    length = _size(place.shape[2])
    batch, row, element = (step if n != 1 else 0 for n, step in zip(place.shape, place.strides, strict=True))
    start = [str(place.offset)] if place.offset != 0 else []
    parts = [*start, f"batch * {batch}", f"{rows} * {row}", f"depth{length}[None, :] * {element}"]
    masks = [mask for mask in (within, short(f"depth{length}[None, :]", length)) if mask]
    return f"{w.pointers[place.source]} + ({' + '.join(parts)})", " & ".join(f"({mask})" for mask in masks)


def _blocks(w: Writing, item: FusedAttentionGradient, over: str) -> None:
    """The loop over the other side: matmuls, what is computed of them, and matmuls of that, added up."""
    tile, other = item.tile, item.other
    open_blocks(w, other, tile, over)
    within = w.masks.get(other)
    down = None if within is None else f"columns[:, None] < {other.size}"
    names: dict[BufferView, str] = {}

    def read(place: BufferView) -> str:
        if place not in names:
            names[place] = f"other{len(names)}"
            w.line(f"{names[place]} = {_read(w, place, 'columns[:, None]', down)}")
        return names[place]

    for k, matmul in enumerate(item.matmuls):
        factor = f"tl.trans({read(matmul.other.transposed)})"
        w.line(f"matmul{k} = tl.dot(own{k}, {factor}{precision(matmul.dtype)})")
        w.refs[matmul.name], w.ref_levels[matmul.name] = f"matmul{k}", 1
    for k, one in enumerate(item.sums):
        value = f"tl.broadcast_to({emit(w, one.value)}, [{tile.rows}, {tile.columns}])"
        value = value if within is None else f"tl.where({within}, {value}, 0.0)"
        kind, factor = DTYPES[one.dtype].triton, read(one.factor)
        factor = factor if one.stored == one.dtype else f"{factor}.to({kind})"
        w.line(f"sum{k} = tl.dot(({value}).to({kind}), {factor}, sum{k}{precision(one.dtype)})")
    close_blocks(w, other)


def _result(w: Writing, item: FusedAttentionGradient, k: int, one: SideSum) -> None:
    where, mask = _where(w, one.result, "rows[:, None]", w.masks.get(item.own))
    w.line(f"tl.store({where}, sum{k}.to({DTYPES[one.result_dtype].triton}){f', mask={mask}' if mask else ''})")

"""Gradients of attention as a Triton function: a program for some of its own side, over all of the other.

Scores lie in a tile as rows of the own side: of keys as well, so that what is computed of a matmul is a factor of the
next one as it is. Blocks in which nothing is seen are passed by, as in the forward pass: Note [First and last].
"""

from __future__ import annotations

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient
from framesmith_backends.ir.program import BufferView
from framesmith_backends.render.triton.emit import emit
from framesmith_backends.render.triton.fused import operands
from framesmith_backends.render.triton.fused.attention import bounds, close_blocks, open_blocks
from framesmith_backends.render.triton.fused.operands import precision, side
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.render.triton.state import Writing, writing
from framesmith_backends.render.triton.tile import Axis, Tile, fixed, reaches


def render_attention_gradient(item: FusedAttentionGradient, name: str) -> TritonKernel:
    """The Triton function of gradients of attention in its tile."""
    tile, down = item.tile, -(-fixed(item.own.size) // item.tile.rows)
    values = ((one.result.source, one.value) for one in item.sums)
    kernel = operands.kernel_over(item.name, item.params, (item.batch, item.own, item.other), *values)
    views = [*(view for view, _ in item.operands), *(one.result for one in item.sums)]
    far = reaches(kernel) or max(operands.last_index(view, (1, 256, 256)) for view in views) >= 1 << 31
    w = writing(kernel, Tile((Axis(item.own, tile.rows), Axis(item.other, tile.columns))), item.params, far)
    _head(w, item, down)
    _blocks(w, item, bounds(w, item.seen, item.own, item.other, tile))
    for k, one in enumerate(item.sums):
        where, mask = _elements(w, one.result, "rows[:, None]", w.masks.get(item.own), load=False)
        w.line(f"tl.store({where}, sum{k}.to({DTYPES[one.result_dtype].triton}){mask})")
    return operands.function_of(w, name, item.params, down * fixed(item.batch.size), tile)


def _head(w: Writing, item: FusedAttentionGradient, down: int) -> None:
    """The program's rows of its own side, their operands, and sums of nothing."""
    tile = item.tile
    w.line(f"pid = tl.program_id(0).to({w.integer})")
    w.line(f"batch = pid // {down}")
    # What sees most, or is seen most, is begun first where what comes later is hidden.
    block = f"{down - 1} - pid % {down}" if item.last_first else f"pid % {down}"
    w.line(f"rows = ({block}) * {tile.rows} + tl.arange(0, {tile.rows})")
    for length in sorted({fixed(view.shape[2]) for view in (*(m.own for m in item.matmuls), *_factors(item))}):
        w.line(f"depth{length} = tl.arange(0, {side(length)}).to({w.integer})")
    w.level_of[item.batch] = 0
    w.variables[item.batch] = "batch"
    operands.name_loop(w, item.own, "rows[:, None]")
    for k, matmul in enumerate(item.matmuls):
        w.line(f"own{k} = tl.load({''.join(_elements(w, matmul.own, 'rows[:, None]', w.masks.get(item.own)))})")
    for k, factor in enumerate(_factors(item)):
        w.line(f"sum{k} = tl.zeros([{tile.rows}, {side(fixed(factor.shape[2]))}], tl.float32)")


def _factors(item: FusedAttentionGradient) -> list[BufferView]:
    return [one.factor for one in item.sums]


def _elements(w: Writing, view: BufferView, rows: str, within: str | None, load: bool = True) -> tuple[str, str]:
    """The addresses of the elements of a view at these rows, and their mask."""
    length = fixed(view.shape[2])
    depth = f"depth{length}[None, :]"
    return operands.address(w, view, rows, depth), operands.masked(within, operands.short(depth, length), load=load)


def _blocks(w: Writing, item: FusedAttentionGradient, over: str) -> None:
    """The loop over the other side: matmuls, what is computed of them, and matmuls of that, added up."""
    tile, other = item.tile, item.other
    open_blocks(w, other, tile, over)
    within = w.masks.get(other)
    down = None if within is None else f"columns[:, None] < {other.size}"
    names: dict[BufferView, str] = {}

    def read(view: BufferView) -> str:
        if view not in names:
            names[view] = f"other{len(names)}"
            w.line(f"{names[view]} = tl.load({''.join(_elements(w, view, 'columns[:, None]', down))})")
        return names[view]

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

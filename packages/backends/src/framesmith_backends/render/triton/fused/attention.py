"""Attention as the source of a Triton function: a program for some rows of one matmul, over all columns in turn.

Note [Running softmax]: a program keeps for each of its rows the largest score so far, the sum of exponentials below it,
and the sum of values by these weights, all in float32; where a larger score comes both sums are scaled down to it. A
largest score of -inf counts as 0, so that nothing is infinity less infinity: what is hidden has a weight of zero.

Note [First and last]: where places tell which scores are seen, a first loop asks of each block of columns whether any
of it is, reading nothing but what the mask reads. The second one goes from the first such block to the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr, Index, Load, Ref, variables, walk
from framesmith_backends.ir.fused.attention import (
    FINITE_TOTAL,
    FULLY_MASKED,
    LARGEST,
    TOTAL,
    AttentionTile,
    FusedAttention,
)
from framesmith_backends.ir.fused.matmul import ACCUMULATOR
from framesmith_backends.ir.kernel import Kernel, Param, Pass, Store
from framesmith_backends.ir.program import BufferView, contiguous_strides
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.render.nested_lines import flat
from framesmith_backends.render.triton.emit import emit
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.render.triton.state import Scope, Writing
from framesmith_backends.render.triton.tile import Axis, Tile, reaches

#: Which rows saw nothing, not even a NaN.
FULLY_MASKED_ROWS = '(top == float("-inf")) & (total == 0.0)'

#: Sums of exponentials, infinite where the largest is: less than that is taken from each.
INFINITE_SUMS = 'tl.where(top == float("inf"), float("inf"), total)'

#: `tl.dot` takes no fewer elements along any side.
LEAST_SIDE = 16


def render_attention(item: FusedAttention, name: str) -> TritonKernel:
    """The Triton form of attention in its tile."""
    tile = item.tile
    down = -(-_size(item.rows.size) // tile.rows)
    integer = "tl.int64" if _reaches(item) else "tl.int32"
    axes = Tile((Axis(item.rows, tile.rows), Axis(item.columns, tile.columns)))
    w = Writing(_scores_kernel(item), axes, [Scope([], 1)], integer)
    for k, param in enumerate(item.params):
        w.pointers[param.name] = f"p{k}"
    _head(w, item, down)
    _columns(w, item, bounds(w, item.seen, item.rows, item.columns, tile))
    _result(w, item)
    return written(w, name, item.params, down * _size(item.batch.size), tile)


def written(w: Writing, name: str, params: Sequence[Param], grid: int, tile: AttentionTile) -> TritonKernel:
    """The function whose lines were written, of so many programs."""
    head = f"def {name}({', '.join(f'p{k}' for k in range(len(params)))}):"
    source = "\n".join([head, *flat(w.scopes[0].lines)]) + "\n"
    pointers = tuple(DTYPES[param.dtype].pointer for param in params)
    return replace(TritonKernel(name, source, grid, tile.columns, tile.warps, pointers), stages=tile.stages)


def _size(size: object) -> int:
    assert isinstance(size, int)
    return size


def side(length: int) -> int:
    """The power of two that covers a side of a matmul."""
    return max(LEAST_SIDE, 1 << (length - 1).bit_length())


def _scores_kernel(item: FusedAttention) -> Kernel:
    """The scores as a kernel over all of them, which is never launched: what expressions are written for."""
    loops = (item.batch, item.rows, item.columns)
    where = index.linearize([index.of(v) for v in loops], [v.size for v in loops])
    return Kernel(item.name, item.params, loops, (), None, (Pass((), (), (Store(item.result, where, item.scores),)),))


def _reaches(item: FusedAttention) -> bool:
    """Whether a place may be beyond 32 bits, tails of tiles included."""
    rows, columns = item.tile.rows, item.tile.columns
    far = reaches(_scores_kernel(item))
    beyond = (1, rows, 256), (1, 256, columns), (1, columns, 256)
    for place, more in zip((item.queries, item.keys, item.values), beyond, strict=True):
        last = place.offset
        for n, extra, step in zip(place.shape, more, place.strides, strict=True):
            last += (_size(n) + extra) * abs(_size(step))
        far = far or _size(last) >= 1 << 31
    return far


def _head(w: Writing, item: FusedAttention, down: int) -> None:
    """The rows of the program, their queries, and where the loop over columns begins: with nothing seen."""
    tile, depth, length = item.tile, _size(item.queries.shape[2]), _size(item.values.shape[2])
    w.line(f"pid = tl.program_id(0).to({w.integer})")
    w.line(f"batch = pid // {down}")
    # The last rows, which see most where what comes later is hidden, are begun first.
    w.line(f"rows = ({down - 1} - pid % {down}) * {tile.rows} + tl.arange(0, {tile.rows})")
    w.line(f"depth = tl.arange(0, {side(depth)}).to({w.integer})")
    w.line(f"elements = tl.arange(0, {side(length)}).to({w.integer})")
    w.level_of[item.batch] = w.level_of[item.rows] = 0
    w.variables[item.batch] = "batch"
    w.variables[item.rows] = w.fresh("rows[:, None]", w.here)
    if _size(item.rows.size) % tile.rows:
        w.masks[item.rows] = w.fresh(f"{w.variables[item.rows]} < {item.rows.size}", w.here)
    masks = [w.masks.get(item.rows), short("depth[None, :]", depth)]
    w.line(f"q = {read_operand(w, item.queries, 'rows[:, None]', 'depth[None, :]', masks)}")
    w.line(f'top = tl.full([{tile.rows}], float("-inf"), tl.float32)')
    w.line(f"total = tl.zeros([{tile.rows}], tl.float32)")
    w.line(f"means = tl.zeros([{tile.rows}, {side(length)}], tl.float32)")


def short(name: str, length: int) -> str | None:
    """What of a side is there; None for all of it."""
    return f"({name} < {length})" if length != side(length) else None


def read_operand(w: Writing, place: BufferView, first: str, second: str, masks: list[str | None]) -> str:
    batch, *steps = (step if n != 1 else 0 for n, step in zip(place.shape, place.strides, strict=True))
    parts = [f"{name} * {step}" for name, step in zip((first, second), steps, strict=True)]
    start = [str(place.offset)] if place.offset != 0 else []
    where = " + ".join([*start, f"batch * {batch}", *parts])
    mask = " & ".join(f"({one})" for one in masks if one)
    return f"tl.load({w.pointers[place.source]} + ({where}){f', mask={mask}, other=0.0' if mask else ''})"


def bounds(w: Writing, seen: Expr | None, own: Var, other: Var, tile: AttentionTile) -> str:
    """Over which blocks of the other side the loop goes; see Note [First and last]."""
    blocks = -(-_size(other.size) // tile.columns)
    if seen is None or blocks == 1 or not _is_cheap(seen, own, other):
        return f"range(0, {blocks})"
    w.line(f"first = {blocks}")
    w.line("last = 0")
    open_blocks(w, other, tile, f"range(0, {blocks})")
    shown = f"tl.broadcast_to({emit(w, seen)}, [{tile.rows}, {tile.columns}])"
    within = w.mask(w.tile.variables)
    shown = shown if within is None else f"{shown} & {within}"
    w.line(f"some = tl.max(tl.max(({shown}).to(tl.int32), 1), 0)")
    w.line("first = tl.where(some > 0, tl.minimum(first, block), first)")
    w.line("last = tl.where(some > 0, block + 1, last)")
    close_blocks(w, other)
    return "range(fs.integer(first), fs.integer(last))"


def _is_cheap(seen: Expr, own: Var, other: Var) -> bool:
    """Whether the mask reads nothing that is another for each row and each column."""
    return not any(isinstance(part, Load) and {own, other} <= variables(part) for part in walk(seen))


def open_blocks(w: Writing, other: Var, tile: AttentionTile, over: str) -> None:
    """Open a loop over blocks of the tile's columns."""
    head = "    " * w.here.indent + f"for block in {over}:"
    w.scopes.append(Scope([], w.here.indent + 1))
    w.here.names["head"] = head  # written when the loop is closed, after what its body needs from outside
    w.line(f"columns = tl.arange(0, {tile.columns}).to({w.integer})")
    w.line(f"columns += tl.full([], block, {w.integer}) * {tile.columns}")
    w.level_of[other] = 1
    w.variables[other] = w.fresh("columns[None, :]", w.here)
    if _size(other.size) % tile.columns:
        w.masks[other] = w.fresh(f"{w.variables[other]} < {other.size}", w.here)


def close_blocks(w: Writing, other: Var) -> None:
    inner = w.scopes.pop()
    w.here.lines += [inner.names["head"], inner.lines]
    w.masks.pop(other, None)


def _columns(w: Writing, item: FusedAttention, over: str) -> None:
    """The loop over columns; see Note [Running softmax]."""
    tile, depth, length = item.tile, _size(item.keys.shape[1]), _size(item.values.shape[2])
    open_blocks(w, item.columns, tile, over)
    within = w.masks.get(item.columns)
    masks = [short("depth[:, None]", depth), within]
    w.line(f"k = {read_operand(w, item.keys, 'depth[:, None]', 'columns[None, :]', masks)}")
    w.line(f"matmuls = tl.dot(q, k{precision(item.factors)})")
    w.refs[ACCUMULATOR], w.ref_levels[ACCUMULATOR] = "matmuls", 1
    scores = f"tl.broadcast_to({emit(w, item.scores)}, [{tile.rows}, {tile.columns}])"
    w.line(f"x = {scores}" if within is None else f'x = tl.where({within}, {scores}, float("-inf"))')
    w.line("larger = tl.maximum(top, tl.max(x, 1))")
    w.line('base = tl.where(larger == float("-inf"), 0.0, larger)')
    w.line("weights = tl.exp(x - base[:, None])")
    w.line("factor = tl.exp(top - base)")
    w.line("total = total * factor + tl.sum(weights, 1)")
    rows = "columns[:, None]"
    beyond = f"({rows} < {item.columns.size})" if within is not None else None
    masks = [beyond, short("elements[None, :]", length)]
    w.line(f"v = {read_operand(w, item.values, rows, 'elements[None, :]', masks)}")
    kind = DTYPES[item.dtype].triton
    w.line(f"means = tl.dot(weights.to({kind}), v, means * factor[:, None]{precision(item.dtype)})")
    w.line("top = larger")
    close_blocks(w, item.columns)


def precision(dtype: str) -> str:
    """There is attention of float32 where torch's settings allow matmuls of it to be rounded."""
    return ', input_precision="tf32"' if dtype == "f32" else ""


def _result(w: Writing, item: FusedAttention) -> None:
    length = _size(item.values.shape[2])
    w.line("means = means / total[:, None]")
    if item.zero_masked_rows:
        w.line(f"means = tl.where(({FULLY_MASKED_ROWS})[:, None], 0.0, means)")
    batch, row, _ = contiguous_strides((_size(item.batch.size), _size(item.rows.size), length))
    where = f"batch * {batch} + rows[:, None] * {row} + elements[None, :]"
    masks = [w.masks.get(item.rows), short("elements[None, :]", length)]
    mask = " & ".join(f"({one})" for one in masks if one)
    stored = f"means.to({DTYPES[item.dtype].triton})"
    w.line(f"tl.store({w.pointers[item.result]} + ({where}), {stored}{f', mask={mask}' if mask else ''})")
    w.refs |= {LARGEST: "top[:, None]", TOTAL: "total[:, None]"}
    read = {part.name for one in item.kept for part in walk(one.value) if isinstance(part, Ref)}
    for name, value in ((FULLY_MASKED, FULLY_MASKED_ROWS), (FINITE_TOTAL, INFINITE_SUMS)):
        if name in read:
            w.refs[name] = w.fresh(f"({value})[:, None]", w.here)
    for one in item.kept:
        place, value = (f"tl.broadcast_to({emit(w, e)}, [{item.tile.rows}, 1])" for e in (Index(one.index), one.value))
        below = f", mask={w.masks[item.rows]}" if item.rows in w.masks else ""
        w.line(f"tl.store({w.pointers[one.buffer]} + {place}, {value}{below})")

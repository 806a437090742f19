"""Attention as a Triton function: a program for some rows of one matmul, over all columns in turn.

Note [Running softmax]: a program keeps for each of its rows the largest score so far, the sum of exponentials below it,
and the P·V matmul of these, all in float32; where a larger score comes both sums are scaled down to it. A largest score
of -inf counts as 0, so that nothing is infinity less infinity: what is masked has a probability of zero.

Note [First and last]: where indices alone decide which scores are seen, a first loop finds the blocks of columns in
which any is, reading what the mask reads. The second one goes from the first such block to the last one.
"""

from __future__ import annotations

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
from framesmith_backends.ir.program import contiguous_strides
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.render.triton.emit import emit
from framesmith_backends.render.triton.fused import operands
from framesmith_backends.render.triton.fused.operands import address, masked, short, side
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.render.triton.state import Writing, writing
from framesmith_backends.render.triton.tile import Axis, Tile, fixed, reaches

#: The rows that saw nothing, not even a NaN.
FULLY_MASKED_ROWS = '(top == float("-inf")) & (total == 0.0)'
#: Sums of exponentials, infinite where the largest is: less than that is taken from each.
INFINITE_SUMS = 'tl.where(top == float("inf"), float("inf"), total)'


def render_attention(item: FusedAttention, name: str) -> TritonKernel:
    """The Triton function of attention in its tile."""
    tile, down = item.tile, -(-fixed(item.rows.size) // item.tile.rows)
    kernel = operands.kernel_over(
        item.name, item.params, (item.batch, item.rows, item.columns), (item.result, item.scores)
    )
    tails = (1, tile.rows, 256), (1, 256, tile.columns), (1, tile.columns, 256)
    ends = map(operands.last_index, (item.queries, item.keys, item.values), tails)
    axes = Tile((Axis(item.rows, tile.rows), Axis(item.columns, tile.columns)))
    w = writing(kernel, axes, item.params, reaches(kernel) or max(ends) >= 1 << 31)
    _head(w, item, down)
    _columns(w, item, bounds(w, item.seen, item.rows, item.columns, tile))
    _result(w, item)
    return operands.function_of(w, name, item.params, down * fixed(item.batch.size), tile)


def _head(w: Writing, item: FusedAttention, down: int) -> None:
    """The rows of the program, their queries, and sums before the loop over columns: with nothing seen."""
    tile, depth, length = item.tile, fixed(item.queries.shape[2]), fixed(item.values.shape[2])
    w.line(f"pid = tl.program_id(0).to({w.integer})")
    w.line(f"batch = pid // {down}")
    # The last rows, which see most where what comes later is hidden, are begun first.
    w.line(f"rows = ({down - 1} - pid % {down}) * {tile.rows} + tl.arange(0, {tile.rows})")
    w.line(f"depth = tl.arange(0, {side(depth)}).to({w.integer})")
    w.line(f"elements = tl.arange(0, {side(length)}).to({w.integer})")
    w.level_of[item.batch] = 0
    w.variables[item.batch] = "batch"
    operands.name_loop(w, item.rows, "rows[:, None]")
    mask = masked(w.masks.get(item.rows), short("depth[None, :]", depth))
    w.line(f"q = tl.load({address(w, item.queries, 'rows[:, None]', 'depth[None, :]')}{mask})")
    w.line(f'top = tl.full([{tile.rows}], float("-inf"), tl.float32)')
    w.line(f"total = tl.zeros([{tile.rows}], tl.float32)")
    w.line(f"result = tl.zeros([{tile.rows}, {side(length)}], tl.float32)")


def bounds(w: Writing, seen: Expr | None, own: Var, other: Var, tile: AttentionTile) -> str:
    """The range of blocks of the other side that the loop goes over; see Note [First and last]."""
    blocks = -(-fixed(other.size) // tile.columns)
    # A mask that is read for each row and each column takes as long as the scores.
    if seen is None or blocks == 1 or any(isinstance(e, Load) and {own, other} <= variables(e) for e in walk(seen)):
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


def open_blocks(w: Writing, other: Var, tile: AttentionTile, over: str) -> None:
    """Open a loop over blocks of the tile's columns."""
    w.open_loop(over, "block")
    w.line(f"columns = tl.arange(0, {tile.columns}).to({w.integer})")
    w.line(f"columns += tl.full([], block, {w.integer}) * {tile.columns}")
    operands.name_loop(w, other, "columns[None, :]")


def close_blocks(w: Writing, other: Var) -> None:
    w.close(1)
    w.masks.pop(other, None)


def _columns(w: Writing, item: FusedAttention, over: str) -> None:
    """The loop over columns; see Note [Running softmax]."""
    tile, depth, length = item.tile, fixed(item.keys.shape[1]), fixed(item.values.shape[2])
    open_blocks(w, item.columns, tile, over)
    within = w.masks.get(item.columns)
    keys = address(w, item.keys, "depth[:, None]", "columns[None, :]")
    w.line(f"k = tl.load({keys}{masked(short('depth[:, None]', depth), within)})")
    w.line(f"matmuls = tl.dot(q, k{operands.precision(item.factors)})")
    w.refs[ACCUMULATOR], w.ref_levels[ACCUMULATOR] = "matmuls", 1
    scores = f"tl.broadcast_to({emit(w, item.scores)}, [{tile.rows}, {tile.columns}])"
    w.line(f"x = {scores}" if within is None else f'x = tl.where({within}, {scores}, float("-inf"))')
    w.line("larger = tl.maximum(top, tl.max(x, 1))")
    w.line('base = tl.where(larger == float("-inf"), 0.0, larger)')
    w.line("powers = tl.exp(x - base[:, None])")
    w.line("factor = tl.exp(top - base)")
    w.line("total = total * factor + tl.sum(powers, 1)")
    beyond = None if within is None else f"(columns[:, None] < {item.columns.size})"
    values = address(w, item.values, "columns[:, None]", "elements[None, :]")
    w.line(f"v = tl.load({values}{masked(beyond, short('elements[None, :]', length))})")
    kind = DTYPES[item.dtype].triton
    w.line(f"result = tl.dot(powers.to({kind}), v, result * factor[:, None]{operands.precision(item.dtype)})")
    w.line("top = larger")
    close_blocks(w, item.columns)


def _result(w: Writing, item: FusedAttention) -> None:
    length = fixed(item.values.shape[2])
    w.line("result = result / total[:, None]")
    if item.zero_masked_rows:
        w.line(f"result = tl.where(({FULLY_MASKED_ROWS})[:, None], 0.0, result)")
    batch, row, _ = contiguous_strides((fixed(item.batch.size), fixed(item.rows.size), length))
    where = f"batch * {batch} + rows[:, None] * {row} + elements[None, :]"
    mask = masked(w.masks.get(item.rows), short("elements[None, :]", length), load=False)
    w.line(f"tl.store({w.pointers[item.result]} + ({where}), result.to({DTYPES[item.dtype].triton}){mask})")
    w.refs |= {LARGEST: "top[:, None]", TOTAL: "total[:, None]"}
    read = {part.name for one in item.kept for part in walk(one.value) if isinstance(part, Ref)}
    for name, value in ((FULLY_MASKED, FULLY_MASKED_ROWS), (FINITE_TOTAL, INFINITE_SUMS)):
        if name in read:
            w.refs[name] = w.fresh(f"({value})[:, None]", w.here)
    for one in item.kept:
        place, value = (f"tl.broadcast_to({emit(w, e)}, [{item.tile.rows}, 1])" for e in (Index(one.index), one.value))
        below = f", mask={w.masks[item.rows]}" if item.rows in w.masks else ""
        w.line(f"tl.store({w.pointers[one.buffer]} + {place}, {value}{below})")

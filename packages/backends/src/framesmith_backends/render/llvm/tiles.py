"""Reductions down columns in tiles: rows are walked outside, a tile of lanes inside, running values in arrays.

So memory is read along its rows even where the values are too costly to compute for many lanes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from framesmith_backends.ir.index import Var
from framesmith_backends.ir.kernel import Accumulate, Pass, Store
from framesmith_backends.ir.ops import REDUCTIONS
from framesmith_backends.ir.size import surely_at_least, surely_positive
from framesmith_backends.render.llvm.builder import REGISTER, Value, constant
from framesmith_backends.render.llvm.emit import emit, emit_store, tile_address, tile_load
from framesmith_backends.render.llvm.loops import lane_blocks, opened_loop
from framesmith_backends.render.llvm.ops import emit_op
from framesmith_backends.render.llvm.reduce import BLOCK_STEPS, needs_blocks
from framesmith_backends.render.llvm.sizes import size_of
from framesmith_backends.render.llvm.state import Rendering


@dataclass(frozen=True, slots=True)
class Tile:
    """Lanes [first, last) of `lane`, at most `width` of them."""

    lane: Var
    first: Value
    last: Value
    width: int


@dataclass(frozen=True, slots=True)
class Column:
    """A reduction under way: an array of running values, and for long sums one of totals."""

    spec: Accumulate
    kind: str
    running: Value
    total: Value | None


def tiled_passes(r: Rendering, lane: Var, first: Value, last: Value, width: int) -> None:
    """All passes of the kernel over one tile."""
    tile = Tile(lane, first, last, width)
    for one in r.kernel.passes:
        if one.before:
            _along(r, tile, partial(_stores, r, one.before))
        if one.has_loop:
            columns = [_column(r, tile, a) for a in one.reductions]
            _rows(r, tile, list(r.kernel.row), one, columns)
            for c in columns:
                if c.total is not None:
                    _flush(r, tile, columns)
                    break
            for c in columns:
                r.arrays[c.spec.name] = (c.running if c.total is None else c.total, first, c.kind)


def _along(r: Rendering, tile: Tile, inside: Callable[[], None]) -> None:
    """Run `inside` for each block of lanes of the tile."""

    def block() -> None:
        r.ref_level = len(r.levels) - 1
        inside()

    lane_blocks(r, tile.lane, tile.first, tile.last, block)


def _column(r: Rendering, tile: Tile, spec: Accumulate) -> Column:
    kind = REGISTER[spec.value.dtype]
    # A block of lanes may reach past the tile's end.
    space = tile.width + r.lanes
    out, r.b.out = r.b.out, r.entry
    running = r.b.emit(f"alloca [{space} x {kind}], align 64", "ptr")
    total = r.b.emit(f"alloca [{space} x {kind}], align 64", "ptr") if needs_blocks(r, spec) else None
    r.b.out = out
    column = Column(spec, kind, running, total)

    def begin() -> None:
        for cell in (running, total):
            if cell is not None:
                _put(r, tile, column, cell, _start(r, spec))

    _along(r, tile, begin)
    return column


def _stores(r: Rendering, stores: tuple[Store, ...]) -> None:
    for store in stores:
        emit_store(r, store)


def _start(r: Rendering, spec: Accumulate) -> Value:
    dtype = spec.value.dtype
    return constant(REDUCTIONS[spec.kind].start(dtype), REGISTER[dtype], r.lanes)


def _put(r: Rendering, tile: Tile, column: Column, cell: Value, value: Value) -> None:
    place = tile_address(r, cell, tile.first, column.kind)
    r.b.line(f"store {r.b.splat(value, r.lanes).typed}, ptr {place.text}, align 1")


def _combine(r: Rendering, tile: Tile, column: Column, cell: Value, value: Value) -> None:
    before = tile_load(r, tile_address(r, cell, tile.first, column.kind), column.kind)
    value = r.b.splat(value, r.lanes)
    combine = REDUCTIONS[column.spec.kind].combine
    _put(r, tile, column, cell, emit_op(r.b, combine, (value, before), column.spec.value.dtype))


def _rows(r: Rendering, tile: Tile, loops: list[Var], one: Pass, columns: list[Column]) -> None:
    """The row loops from the outside in, the tile's lanes innermost; long sums are flushed after blocks of rows."""
    var, *rest = loops
    zero, end, sure = constant(0, "i64"), size_of(r, var.size), surely_positive(var.size)
    blocked = any(c.total is not None for c in columns)
    if rest:
        with opened_loop(r, zero, end, 1, var, sure):
            _rows(r, tile, rest, one, columns)
        return
    if not blocked or surely_at_least(BLOCK_STEPS, var.size):
        with opened_loop(r, zero, end, 1, var, sure):
            _along(r, tile, lambda: _step(r, tile, one, columns))
    else:
        with opened_loop(r, zero, end, BLOCK_STEPS, None, sure) as start:
            far = r.b.add(start, BLOCK_STEPS)
            stop = r.b.select(r.b.compare("ult", far, end), far, end)
            with opened_loop(r, start, stop, 1, var):
                _along(r, tile, lambda: _step(r, tile, one, columns))
            _flush(r, tile, columns)
    if blocked and r.kernel.row[0] is not var:
        _flush(r, tile, columns)


def _step(r: Rendering, tile: Tile, one: Pass, columns: list[Column]) -> None:
    for c in columns:
        _combine(r, tile, c, c.running, emit(r, c.spec.value))
    _stores(r, one.stores)


def _flush(r: Rendering, tile: Tile, columns: list[Column]) -> None:
    """Add the running values to the totals and start again."""

    def block() -> None:
        for c in columns:
            if c.total is not None:
                part = tile_load(r, tile_address(r, c.running, tile.first, c.kind), c.kind)
                _combine(r, tile, c, c.total, part)
                _put(r, tile, c, c.running, _start(r, c.spec))

    _along(r, tile, block)

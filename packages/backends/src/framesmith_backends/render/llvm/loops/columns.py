"""Kernels that reduce rows and columns: rows in turn, running sums down the columns in arrays as long as a row.

A part has so few rows (`ir.splitting.Down`) that its sums need no blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.kernel import Accumulate
from framesmith_backends.ir.ops import REDUCTIONS
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.loops.emit import emit, emit_store, tile_address
from framesmith_backends.render.llvm.loops.memory import tile_load
from framesmith_backends.render.llvm.loops.nest import lane_blocks, opened_loop
from framesmith_backends.render.llvm.loops.reduce import squared
from framesmith_backends.render.llvm.loops.state import Rendering
from framesmith_backends.render.llvm.ops import emit_op


def rows_in_turn(r: Rendering, inside: Callable[[], None]) -> None:
    """Run `inside`, all passes of the kernel, for each row; before that the sums are 0, and behind it stored."""
    lane = r.kernel.lane
    assert lane is not None and isinstance(lane.size, int) and r.kernel.row == (lane,)
    columns = [column for one in r.kernel.passes for column in one.columns]
    for column in columns:
        r.arrays[column.name] = (_array(r, column, lane.size), constant(0, "i64"), DTYPES[column.value.dtype].register)
    with opened_loop(r, constant(0, "i64"), constant(lane.size, "i64"), r.lanes, lane):
        for column in columns:
            _put(r, column, constant(REDUCTIONS[column.kind].start(column.value.dtype), _kind(column), r.lanes))
    _each(r, r.kernel.down, inside)
    end = constant(lane.size, "i64")
    lane_blocks(r, lane, constant(0, "i64"), end, lambda: _stores(r), repeatable=True)


def add_to_column(r: Rendering, column: Accumulate) -> None:
    """Combine the values of the current block of lanes with the running ones. Under a mask, what others get is lost."""
    before, base = _get(r, column), squared(column)
    if base is None:
        value, combine = r.b.splat(emit(r, column.value), r.lanes), REDUCTIONS[column.kind].combine
        _put(r, column, emit_op(r.b, combine, (value, before), column.value.dtype))
    else:
        value = r.b.splat(emit(r, base), r.lanes)
        _put(r, column, r.b.fma(value, value, before))


def _each(r: Rendering, loops: tuple[Var, ...], inside: Callable[[], None]) -> None:
    if not loops:
        inside()
        return
    size = loops[0].size
    assert isinstance(size, int)
    with opened_loop(r, constant(0, "i64"), constant(size, "i64"), 1, loops[0]):
        _each(r, loops[1:], inside)


def _stores(r: Rendering) -> None:
    r.ref_level = len(r.levels) - 1
    for store in r.kernel.after:
        emit_store(r, store)


def _kind(column: Accumulate) -> str:
    return DTYPES[column.value.dtype].register


def _array(r: Rendering, column: Accumulate, size: int) -> Value:
    """Room for a value for each lane. The last block of lanes may reach past the row's end."""
    return r.room(f"[{size + r.lanes} x {_kind(column)}]")


def _place(r: Rendering, column: Accumulate) -> Value:
    array, first, kind = r.arrays[column.name]
    return tile_address(r, array, first, kind)


def _get(r: Rendering, column: Accumulate) -> Value:
    return tile_load(r, _place(r, column), _kind(column))


def _put(r: Rendering, column: Accumulate, value: Value) -> None:
    r.b.line(f"store {value.typed}, ptr {_place(r, column).text}, align 1")

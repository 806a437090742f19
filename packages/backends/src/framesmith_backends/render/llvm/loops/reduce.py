"""Reductions in LLVM IR: running values, sums in blocks, lanes combined; and sums down columns, row after row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr, Op
from framesmith_backends.ir.kernel import Accumulate
from framesmith_backends.ir.ops import REDUCTIONS
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import numel
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.loops.emit import emit, emit_store, put_in_tile, tile_address
from framesmith_backends.render.llvm.loops.memory import tile_load
from framesmith_backends.render.llvm.loops.nest import lane_blocks, opened_loop
from framesmith_backends.render.llvm.loops.state import Rendering
from framesmith_backends.render.llvm.ops import emit_op

# Sums of more steps than this are accumulated in blocks of this many, for accuracy.
BLOCK_STEPS = 256


@dataclass(frozen=True, slots=True)
class Running:
    """A reduction under way: its running value in each lane, and for long float sums a total that blocks are added to.

    Both are stack cells (registers after SROA), or arrays over lanes from `first` on. `start` is the value of no steps.
    """

    spec: Accumulate
    start: Value
    cell: Value
    total: Value | None
    first: Value | None = None

    @property
    def result(self) -> Value:
        return self.cell if self.total is None else self.total

    def load(self, r: Rendering, slot: Value) -> Value:
        if self.first is not None:
            return tile_load(r, tile_address(r, slot, self.first, self.start.kind), self.start.kind)
        return r.b.emit(f"load {self.start.type}, ptr {slot.text}", self.start.kind, self.start.lanes)

    def put(self, r: Rendering, slot: Value, value: Value) -> None:
        if self.first is None:
            r.b.line(f"store {value.typed}, ptr {slot.text}")
        else:
            put_in_tile(r, slot, self.first, value)

    def reset(self, r: Rendering) -> None:
        for slot in (self.cell, self.total):
            if slot is not None:
                self.put(r, slot, self.start)

    def step(self, r: Rendering) -> Value:
        """Combine the value of one step (under the mask of a row) into the running value, which is returned."""
        base = _squared(self.spec)
        value = r.b.splat(emit(r, self.spec.value if base is None else base), self.start.lanes)
        if r.mask is not None and r.kernel.lane in r.kernel.row and self.first is None:
            value = r.b.select(r.mask, value, self.start)
        if base is None:
            return self._combine(r, self.cell, value)
        after = r.b.fma(value, value, self.load(r, self.cell))
        self.put(r, self.cell, after)
        return after

    def _combine(self, r: Rendering, slot: Value, value: Value) -> Value:
        combine = REDUCTIONS[self.spec.kind].combine
        after = emit_op(r.b, combine, (value, self.load(r, slot)), self.spec.value.dtype)
        self.put(r, slot, after)
        return after

    def flush(self, r: Rendering) -> None:
        """Add the running value to the total, if there is one, and start again."""
        if self.total is not None:
            self._combine(r, self.total, self.load(r, self.cell))
            self.put(r, self.cell, self.start)

    def finish(self, r: Rendering, across: bool) -> None:
        """The result of stack cells as a Ref: across the lanes if they were reduced too."""
        self.flush(r)
        value = self.load(r, self.result)
        r.refs[self.spec.name] = _across(r, value, self.spec) if across else value


def running(
    r: Rendering, spec: Accumulate, width: int = 0, first: Value | None = None, blocked: bool = True
) -> Running:
    """Room for the reduction; in arrays over `width` lanes from `first` on, which the last block may reach beyond."""
    dtype = spec.value.dtype
    start = constant(REDUCTIONS[spec.kind].start(dtype), DTYPES[dtype].register, r.lanes)
    type_ = start.type if first is None else f"[{width + r.lanes} x {start.kind}]"
    cell = r.room(type_)
    return Running(spec, start, cell, r.room(type_) if blocked and _needs_blocks(r, spec) else None, first)


def _squared(spec: Accumulate) -> Expr | None:
    """The squared value in a sum of squares: these are not rounded before they are added, none cancels another."""
    value = spec.value
    if spec.kind != "sum" or not isinstance(value, Op) or value.name != "mul" or value.args[0] is not value.args[1]:
        return None
    return value.args[0] if value.dtype in ("f32", "f64") else None


def _needs_blocks(r: Rendering, spec: Accumulate) -> bool:
    if spec.kind not in ("sum", "prod") or DTYPES[spec.value.dtype].register not in ("float", "double"):
        return False
    steps = numel(v.size for v in r.kernel.row)
    if not isinstance(steps, int):
        return True
    return (steps // r.lanes if r.kernel.lane in r.kernel.row else steps) > BLOCK_STEPS


def _across(r: Rendering, value: Value, spec: Accumulate) -> Value:
    """Combine the lanes pairwise: halves are combined until one value is left."""
    while value.lanes > 1:
        half = value.lanes // 2
        if half == 1:
            parts = [r.b.emit(f"extractelement {value.typed}, i64 {k}", value.kind) for k in (0, 1)]
        else:
            parts = [r.b.pick(value, range(first, first + half)) for first in (0, half)]
        value = emit_op(r.b, REDUCTIONS[spec.kind].combine, tuple(parts), spec.value.dtype)
    return value


def rows_in_turn(r: Rendering, inside: Callable[[dict[str, Running]], None]) -> None:
    """Run all passes of a kernel that reduces rows and columns for each row, with the sums down the columns by name.

    These are arrays as long as a row. A part has so few rows (`target.RowColumnPolicy`) that its sums need no blocks.
    """
    lane, zero = r.kernel.lane, constant(0, "i64")
    assert lane is not None and isinstance(lane.size, int) and r.kernel.row == (lane,)
    specs = [column for one in r.kernel.passes for column in one.columns]
    columns = {spec.name: running(r, spec, lane.size, zero, blocked=False) for spec in specs}
    r.arrays.update({name: (column.cell, zero, column.start.kind) for name, column in columns.items()})
    end = constant(lane.size, "i64")
    with opened_loop(r, zero, end, r.lanes, lane):
        for column in columns.values():
            column.reset(r)
    _each(r, r.kernel.down, lambda: inside(columns))
    lane_blocks(r, lane, zero, end, lambda: _stores(r), repeatable=True)


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

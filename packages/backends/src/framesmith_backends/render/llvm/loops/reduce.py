"""Reductions in LLVM IR: running values in stack cells (registers after SROA), blocked sums, lanes combined."""

from __future__ import annotations

from dataclasses import dataclass

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr, Op
from framesmith_backends.ir.kernel import Accumulate
from framesmith_backends.ir.ops import REDUCTIONS
from framesmith_backends.ir.symbolic.size import numel
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.loops.emit import emit
from framesmith_backends.render.llvm.loops.state import Rendering
from framesmith_backends.render.llvm.ops import emit_op

# Sums of more steps than this are accumulated in blocks of this many, for accuracy.
BLOCK_STEPS = 256


@dataclass(slots=True)
class Accumulator:
    """A reduction under way: its running value, and for float sums a total that blocks are added to."""

    spec: Accumulate
    cell: Value
    total: Value | None
    start_value: Value

    @property
    def blocked(self) -> bool:
        return self.total is not None

    @staticmethod
    def start(r: Rendering, spec: Accumulate) -> Accumulator:
        dtype = spec.value.dtype
        kind = DTYPES[dtype].register
        row = REDUCTIONS[spec.kind]
        start = constant(row.start(dtype), kind, r.lanes)
        cell, total = r.room(start.type), r.room(start.type) if needs_blocks(r, spec) else None
        for slot in (cell, total):
            if slot is not None:
                r.b.line(f"store {start.typed}, ptr {slot.text}")
        return Accumulator(spec, cell, total, start)

    def step(self, r: Rendering) -> None:
        """Combine the value of one step (under the mask, if there is one) into the running value."""
        base = squared(self.spec)
        value = r.b.splat(emit(r, self.spec.value if base is None else base), self.start_value.lanes)
        if r.mask is not None and r.kernel.lane in r.kernel.row:
            value = r.b.select(r.mask, value, self.start_value)
        if base is None:
            self._combine(r, self.cell, value)
            return
        before = r.b.emit(f"load {self.start_value.type}, ptr {self.cell.text}", value.kind, value.lanes)
        r.b.line(f"store {r.b.fma(value, value, before).typed}, ptr {self.cell.text}")

    def _combine(self, r: Rendering, slot: Value, value: Value) -> None:
        kind, lanes = self.start_value.kind, self.start_value.lanes
        before = r.b.emit(f"load {self.start_value.type}, ptr {slot.text}", kind, lanes)
        dtype = self.spec.value.dtype
        after = emit_op(r.b, REDUCTIONS[self.spec.kind].combine, (value, before), dtype)
        r.b.line(f"store {after.typed}, ptr {slot.text}")

    def flush(self, r: Rendering) -> None:
        if self.total is None:
            return
        kind, lanes = self.start_value.kind, self.start_value.lanes
        part = r.b.emit(f"load {self.start_value.type}, ptr {self.cell.text}", kind, lanes)
        self._combine(r, self.total, part)
        r.b.line(f"store {self.start_value.typed}, ptr {self.cell.text}")

    def finish(self, r: Rendering, across: bool) -> None:
        """The result as a Ref: across the lanes if they were reduced too."""
        kind, lanes = self.start_value.kind, self.start_value.lanes
        if self.total is not None:
            self.flush(r)
        slot = self.total if self.total is not None else self.cell
        value = r.b.emit(f"load {self.start_value.type}, ptr {slot.text}", kind, lanes)
        if across and lanes > 1:
            value = _across(r, value, self.spec)
        r.refs[self.spec.name] = value


def squared(spec: Accumulate) -> Expr | None:
    """What is squared, in a sum of squares: these are not rounded before they are added, none takes another away."""
    value = spec.value
    if spec.kind != "sum" or not isinstance(value, Op) or value.name != "mul" or value.args[0] is not value.args[1]:
        return None
    return value.args[0] if value.dtype in ("f32", "f64") else None


def needs_blocks(r: Rendering, spec: Accumulate) -> bool:
    if spec.kind not in ("sum", "prod") or DTYPES[spec.value.dtype].register not in ("float", "double"):
        return False
    lane = r.kernel.lane
    steps = numel(v.size for v in r.kernel.row)
    if not isinstance(steps, int):
        return True
    return (steps // r.lanes if lane in r.kernel.row else steps) > BLOCK_STEPS


def _across(r: Rendering, value: Value, spec: Accumulate) -> Value:
    """Combine the lanes pairwise: halves are combined until one value is left."""
    dtype = spec.value.dtype
    combine = REDUCTIONS[spec.kind].combine
    while value.lanes > 1:
        half = value.lanes // 2
        parts = []
        for first in (0, half):
            if half == 1:
                parts.append(r.b.emit(f"extractelement {value.typed}, i64 {first}", value.kind))
            else:
                parts.append(r.b.pick(value, range(first, first + half)))
        value = emit_op(r.b, combine, tuple(parts), dtype)
    return value

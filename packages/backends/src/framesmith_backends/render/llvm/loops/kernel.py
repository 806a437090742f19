"""One kernel as an LLVM function `void(ptr buffers, i64 begin, i64 end)` over a range of its parallel loop.

Loops are written with explicit vectors (see the README for why): `lanes` consecutive values of the kernel's
lane variable are computed side by side, and a last incomplete block under a mask. Every expression is
emitted in the outermost loop in which all its variables are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.kernel import Kernel, RowPass, Scratch
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol, hint, numel, surely_at_least, surely_positive
from framesmith_backends.render.llvm.builder import Builder, Value, constant, element_bytes
from framesmith_backends.render.llvm.loops import nest
from framesmith_backends.render.llvm.loops.emit import emit, emit_check, emit_store, emit_stores
from framesmith_backends.render.llvm.loops.lanes import columns_deinterleaved, is_deinterleaved, lanes_of, pass_lanes
from framesmith_backends.render.llvm.loops.nest import lane_blocks, opened_loop
from framesmith_backends.render.llvm.loops.reduce import BLOCK_STEPS, Running, rows_in_turn, running
from framesmith_backends.render.llvm.loops.state import Rendering
from framesmith_backends.render.llvm.loops.tiles import column_scan, tiled_passes
from framesmith_backends.render.llvm.loops.transposed import in_tiles, transposed_tiles
from framesmith_backends.render.nested_lines import flat
from framesmith_backends.schedule.kernels.index_splitting import along_lanes
from framesmith_backends.schedule.kernels.loops import accesses
from framesmith_backends.target import Processor


@dataclass(frozen=True, slots=True)
class Shape:
    """The layout of a kernel's loops: `extent` is the size of the parallel loop, in points or lane blocks."""

    lanes: int
    lane_outer: bool
    by_lane: bool
    extent: Size
    points: Size
    # Lanes of one tile, where rows are walked a tile of lanes at a time (0: a block of lanes at a time).
    tile: int = 0
    # Lanes of one point of the parallel loop, if that is over lanes. Threads have whole tiles but of scans.
    unit: int = 0


def shape_of(kernel: Kernel, target: Processor) -> Shape:
    lanes = lanes_of(kernel, target)
    lane_outer = kernel.lane in kernel.outer
    others = numel(v.size for v in kernel.outer if v is not kernel.lane and v not in kernel.down)
    if not lane_outer or kernel.lane is None:
        return Shape(lanes, False, False, others, kernel.points)
    tile = tile_of(kernel, lanes, target)
    unit = lanes if kernel.has_scans else tile or lanes
    blocks = -(-kernel.lane.size // unit)
    by_lane = hint(others) < 32 and hint(blocks) > hint(others)
    return Shape(lanes, True, by_lane, blocks if by_lane else others, kernel.points, tile, unit)


# Tiles are wide enough that memory is read along rows, narrow enough that running sums stay in the L1 cache. Where the
# parallel loop has no other points, the lanes are so many tiles at least, which threads can share.
TILE_LANES, SCAN_LANES = 512, 1024
FEWEST_TILES = 4


def tile_of(kernel: Kernel, lanes: int, target: Processor) -> int:
    """The width of a tile for scans, updates of rows, and sums down columns too costly for many lanes, else 0."""
    if not kernel.row or kernel.scratch or kernel.lane is None:
        return 0
    if kernel.has_scans:
        return SCAN_LANES
    if not kernel.updates and (lanes >= 4 * target.float_lanes or not any(one.reductions for one in kernel.passes)):
        return 0
    if kernel.checks and not _updates_across(kernel):
        return 0
    if any(a.value.dtype == "b1" for one in kernel.passes for a in one.reductions):
        return 0  # a vector of bits is packed in memory, single bits are not
    count = hint(kernel.lane.size)
    if count <= lanes:
        return 0
    shared = -(-count // (FEWEST_TILES * lanes)) * lanes
    return min(shared if kernel.outer == (kernel.lane,) else TILE_LANES, TILE_LANES)


def _updates_across(kernel: Kernel) -> bool:
    """Whether each column has elements of its own: between these in memory are the other columns'."""
    stores = [store for one in kernel.passes for store in one.stores]
    return any(kernel.lane in part.inner for store in stores for part in index.indirect_atoms(store.index))


def render_kernel(
    kernel: Kernel, name: str, target: Processor, strict: bool = False
) -> tuple[str, Shape, dict[str, None]]:
    """(the function's text, its shape, the declarations it needs)."""
    kernel = column_scan(kernel) if kernel.has_scans else in_tiles(kernel)
    shape = shape_of(kernel, target)
    b = Builder(flags="" if strict else " contract", vectors=target.vectors)
    r = Rendering(kernel, shape.lanes, b, target)
    r.b.out = r.entry.lines
    open_buffers(r)
    body: list[object] = []
    r.b.out = body
    _parallel_loop(r, shape)
    text = "\n".join(line if line.endswith(":") else f"  {line}" for line in flat([r.entry.lines, body]))
    head = f"define internal void @{name}(ptr noalias readonly %buffers, i64 %begin, i64 %end) #0 {{\nentry:"
    freed = "".join(f"  call void @free(ptr {r.pointers[s.name].text})\n" for s in kernel.scratch if _is_large(r, s))
    return f"{head}\n{text}\n{freed}  ret void\n}}", shape, r.b.declared


def open_buffers(r: Rendering) -> None:
    """Read the table of buffers and numbers, and make room for rows of scratch."""

    def argument(k: int, kind: str) -> Value:
        slot = r.b.emit(f"getelementptr inbounds ptr, ptr %buffers, i64 {k}", "ptr")
        return r.b.emit(f"load {kind}, ptr {slot.text}, align 8, !invariant.load !1", kind)

    for k, param in enumerate(r.kernel.params):
        r.pointers[param.name] = argument(k, "ptr")
    for k, number in enumerate(r.kernel.numbers, len(r.kernel.params)):
        r.numbers[number] = argument(k, "i64" if isinstance(number, Symbol) else "double")
    if r.kernel.checks:
        r.failed = argument(len(r.kernel.params) + len(r.kernel.numbers), "ptr")
    for scratch in r.kernel.scratch:
        kind = DTYPES[scratch.dtype].memory
        if _is_large(r, scratch):
            r.b.declare("declare ptr @malloc(i64)")
            r.b.declare("declare void @free(ptr)")
            size = r.b.mul(r.size_of(scratch.numel), _copies(r) * element_bytes(kind))
            r.pointers[scratch.name] = r.b.emit(f"call ptr @malloc({size.typed})", "ptr")
        else:
            r.pointers[scratch.name] = r.room(f"[{scratch.numel * _copies(r)} x {kind}]")


# A scratch row of more bytes, or of a size known at the call, is no part of the stack.
LARGEST_ON_STACK = 1 << 16


def _copies(r: Rendering) -> int:
    """The number of values that a scratch row holds of each element."""
    return r.lanes if r.kernel.lane in r.kernel.outer else 1


def _is_large(r: Rendering, scratch: Scratch) -> bool:
    numel = scratch.numel
    return isinstance(numel, Sym) or numel * _copies(r) * element_bytes(DTYPES[scratch.dtype].memory) > LARGEST_ON_STACK


def _parallel_loop(r: Rendering, shape: Shape) -> None:
    """The loop over outer points (and over blocks of lanes, where the lanes are outer)."""
    lane = r.kernel.lane
    others = tuple(v for v in r.kernel.outer if v is not lane and v not in r.kernel.down)
    begin, end = Value("%begin", "i64"), Value("%end", "i64")
    low, high = constant(0, "i64"), r.size_of(lane.size if lane is not None else 1)
    between = numel(v.size for v in others)
    if shape.by_lane:
        assert lane is not None
        low, far = r.b.mul(begin, shape.unit), r.b.mul(end, shape.unit)
        high = r.b.least(far, high)
        begin, end = constant(0, "i64"), r.size_of(between)
    with opened_loop(r, begin, end, 1, None, shape.by_lane and surely_positive(between)) as point:
        _decode(r, point, others)
        if shape.tile and lane is not None:
            sure = isinstance(lane.size, int) and not shape.by_lane
            with (  # deinterleaved in arrays of running values, too
                r.in_lanes(r.lanes, _all_deinterleaved(r)),
                opened_loop(r, low, high, shape.tile, None, sure) as first,
            ):
                tiled_passes(r, lane, first, r.b.least(r.b.add(first, shape.tile), high), shape.tile)
        elif shape.by_lane and lane is not None:
            lane_blocks(r, lane, low, high, lambda: _passes(r), _is_repeatable(r.kernel))
        elif shape.lane_outer:
            _lane_intervals(r)
        elif r.kernel.down:
            r.columns_deinterleaved = columns_deinterleaved(r.kernel, r.lanes, r.target)
            rows_in_turn(r, lambda columns: _passes(r, columns))
        else:
            _passes(r)


def _lane_intervals(r: Rendering) -> None:
    """All lanes of a point, split where conditions change along them, if lanes may be computed twice."""
    whole, lanes = r.kernel, r.lanes
    intervals = along_lanes(whole, lanes)
    if not all(_is_repeatable(one) for one, _ in intervals if one.lane is not None):
        intervals = [(whole, lanes)]
    for r.kernel, r.lanes in intervals:
        if r.kernel.lane is None:
            _passes(r)
            continue
        lane, low = r.kernel.lane, constant(0, "i64")
        lane_blocks(r, lane, low, r.size_of(lane.size), lambda: _passes(r), _is_repeatable(r.kernel))
    r.kernel, r.lanes = whole, lanes


def _decode(r: Rendering, point: Value, loops: tuple[Var, ...]) -> None:
    """The values of the outer variables at a point of the parallel loop."""
    for k, var in enumerate(reversed(loops)):
        r.level_of[var] = 0
        if k == len(loops) - 1:
            r.variables[var] = point
        else:
            r.variables[var] = r.b.binary("urem", point, r.divisor_of(var.size))
            point = r.b.binary("udiv", point, r.divisor_of(var.size))


def _passes(r: Rendering, columns: Mapping[str, Running] = MappingProxyType({})) -> None:
    r.ref_level = len(r.levels) - 1
    r.transposed = {} if r.mask is not None else transposed_tiles(r)
    with r.in_lanes(r.lanes, r.kernel.lane in r.kernel.outer and _all_deinterleaved(r)):
        for one in r.kernel.passes:
            for store in one.before:
                emit_store(r, store)
            if one.has_loop:
                _row_loops(r, one, columns)


def _all_deinterleaved(r: Rendering) -> bool:
    return is_deinterleaved(r.kernel, r.kernel.passes, r.lanes, r.target)


def _is_repeatable(kernel: Kernel) -> bool:
    """Whether lanes may be computed twice: see Note [The rest, again]."""
    if kernel.lane is None or kernel.writes_what_it_reads:
        return False
    for one in kernel.passes:
        read = {load.source for load in loads(*one.values)}
        if any(store.buffer in read for store in (*one.before, *one.stores)):
            return False
    return all(index.coefficient(ix, kernel.lane) is not None for ix, _ in accesses(kernel))


def _row_loops(r: Rendering, one: RowPass, columns: Mapping[str, Running]) -> None:
    """The row loops of one pass, innermost the lanes if they are a row variable."""
    inner = r.kernel.lane if r.kernel.lane in r.kernel.row else None
    lanes, deinterleaved = r.lanes, r.deinterleaved
    if inner is not None:
        lanes = pass_lanes(r.kernel, one, lanes, r.target)
        deinterleaved = r.columns_deinterleaved if one.columns else is_deinterleaved(r.kernel, (one,), lanes, r.target)
    outside = [v for v in r.kernel.row if v is not inner]
    with r.in_lanes(lanes, deinterleaved):
        reductions = [running(r, a) for a in one.reductions]
        for a in reductions:
            a.reset(r)
        values = [*reductions, *(columns[column.name] for column in one.columns)]
        _row_nest(r, outside, lambda: _row_inner(r, inner, one, values), values)
        for a in reductions:
            a.finish(r, inner is not None)


def _row_nest(r: Rendering, loops: list[Var], inside: Callable[[], None], values: list[Running]) -> None:
    """Open the loops from the outside in, and run `inside` in the innermost."""
    if not loops:
        inside()
        return
    var, *rest = loops
    vertical = not rest and r.kernel.lane not in r.kernel.row and any(a.total is not None for a in values)
    end, sure = r.size_of(var.size), surely_positive(var.size)
    if vertical and not surely_at_least(BLOCK_STEPS, var.size):
        nest.blocked_loop(r, end, BLOCK_STEPS, 1, var, inside, lambda: _flush(r, values), sure)
        return
    with opened_loop(r, constant(0, "i64"), end, 1, var, sure):
        _row_nest(r, rest, inside, values)
    if vertical:
        _flush(r, values)


def _flush(r: Rendering, values: list[Running]) -> None:
    for a in values:
        a.flush(r)


def _row_inner(r: Rendering, lane: Var | None, one: RowPass, values: list[Running]) -> None:
    """One point of the row loops outside the lanes: the lane loop, or one step where the lanes are outer."""
    if lane is None:
        _body(r, one, values)
        return
    body, flush = partial(_body, r, one, values), partial(_flush, r, values)
    end, step = r.size_of(lane.size), BLOCK_STEPS * r.lanes
    blocked = any(a.total is not None for a in values)
    if isinstance(lane.size, int):
        whole = lane.size // r.lanes * r.lanes
        if not blocked or whole <= step:
            repeatable = not values and _is_repeatable(r.kernel)
            lane_blocks(r, lane, constant(0, "i64"), end, body, repeatable)
        else:
            nest.blocked_loop(r, constant(whole, "i64"), step, r.lanes, lane, body, flush, True)
            if lane.size > whole:
                nest.lane_tail(r, lane, end, whole, True, body)
        if blocked:
            flush()
    elif not blocked:
        lane_blocks(r, lane, constant(0, "i64"), end, body)
    else:
        last = nest.whole_lanes(r, end)
        nest.blocked_loop(r, last, step, r.lanes, lane, body, flush, False)
        nest.any_lane_tail(r, lane, last, end, body)


def _body(r: Rendering, one: RowPass, values: list[Running]) -> None:
    for a in values:
        a.step(r)
    for check in one.checks:
        emit_check(r, check, r.kernel.checks.index(check))
    if r.kernel.writes_what_it_reads:
        for store in one.stores:
            emit(r, store.value)
    emit_stores(r, one.stores)

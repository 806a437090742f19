"""Reductions and scans down columns in tiles: rows outside, a tile of lanes inside, running values in arrays.

So memory is read along its rows even where the values are too costly to compute for many lanes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Cast, Expr, Op, Ref, children, cost, own_variables, rebuild, walk
from framesmith_backends.ir.kernel import Accumulate, Kernel, RowPass, Scan, Store
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import surely_at_least, surely_positive
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.loops.emit import emit, emit_check, emit_store, put_in_tile
from framesmith_backends.render.llvm.loops.nest import blocked_loop, lane_blocks, opened_loop
from framesmith_backends.render.llvm.loops.reduce import BLOCK_STEPS, Running, running
from framesmith_backends.render.llvm.loops.state import Rendering
from framesmith_backends.schedule.kernels.loops import rewrite_indices

# Cycles (`ir.expr.cost`) from which a value that no row changes is computed before the rows: those of a load.
LEAST_KEPT = 2


@dataclass(frozen=True, slots=True)
class Tile:
    """Lanes [first, last) of `lane`, at most `width` of them."""

    lane: Var
    first: Value
    last: Value
    width: int


def column_scan(kernel: Kernel) -> Kernel:
    """The kernel with its lanes across the scanned lines, if there are several, and its row loop in their direction.

    Raises:
        ValueError: A scan combines values without steps, as those of GPUs do.
    """
    if any(scan.start is None for one in kernel.passes for scan in one.scans):
        raise ValueError(f"kernel {kernel.name} has no LLVM form: it has a scan without steps")
    if kernel.lane is None:
        line = Var("line", 1)
        kernel = replace(kernel, outer=(*kernel.outer, line), lane=line)
    if any(scan.reverse for one in kernel.passes for scan in one.scans):
        (row,) = kernel.row
        backwards = index.total(((index.of(row), -1),), row.size - 1)
        kernel = rewrite_indices(kernel, lambda ix: index.substitute(ix, {row: backwards}))
    return kernel


def tiled_passes(r: Rendering, lane: Var, first: Value, last: Value, width: int) -> None:
    """All passes of the kernel over one tile."""
    tile = Tile(lane, first, last, width)
    for number, one in enumerate(r.kernel.passes):
        if one.before:
            _along(r, tile, partial(_stores, r, one.before))
        if not one.has_loop:
            continue
        one = _without_invariants(r, tile, one, f"tile.{number}")
        columns = [_running(r, tile, a) for a in one.reductions]
        for s in one.scans:
            _carry(r, tile, s)
        _rows(r, tile, list(r.kernel.row), one, columns)
        if any(c.total is not None for c in columns):
            _flush(r, tile, columns)
        r.arrays.update({c.spec.name: (c.result, first, c.start.kind) for c in columns})


def _without_invariants(r: Rendering, tile: Tile, one: RowPass, name: str) -> RowPass:
    """The pass with what is the same in all rows computed before them, once for each lane, and kept in arrays."""
    roots = [*(a.value for a in one.reductions), *(s.value for s in one.scans), *(s.value for s in one.stores)]
    kept = {e: Ref(f"{name}.{k}", e.dtype) for k, e in enumerate(_invariants(r.kernel, one, roots))}
    # The last block of lanes may reach past the tile's end.
    arrays = {e: r.room(f"[{tile.width + r.lanes} x {DTYPES[e.dtype].register}]") for e in kept}

    def compute() -> None:
        for e, array in arrays.items():
            put_in_tile(r, array, tile.first, emit(r, e))

    if kept:
        _along(r, tile, compute)
    r.arrays.update({ref.name: (arrays[e], tile.first, DTYPES[e.dtype].register) for e, ref in kept.items()})
    done: dict[Expr, Expr] = {}
    for e in walk(*roots):
        parts = tuple(done[part] for part in children(e))
        done[e] = kept[e] if e in kept else rebuild(e, parts) if parts else e
    return replace(
        one,
        reductions=tuple(replace(a, value=done[a.value]) for a in one.reductions),
        scans=tuple(replace(s, value=done[s.value]) for s in one.scans),
        stores=tuple(replace(s, value=done[s.value]) for s in one.stores),
    )


def _invariants(kernel: Kernel, one: RowPass, roots: Sequence[Expr]) -> list[Expr]:
    """The largest parts of the expressions that no row changes and that are worth keeping.

    None where there may be no rows: what only they read is not read then (see `Level`).
    """
    if not all(surely_positive(var.size) for var in kernel.row):
        return []
    fixed: dict[Expr, bool] = {}
    rows, scans = frozenset(kernel.row), {scan.name for scan in one.scans}
    for e in walk(*roots):
        changed = own_variables(e) & rows or kernel.reads_again(e) or (isinstance(e, Ref) and e.name in scans)
        fixed[e] = not changed and all(fixed[part] for part in children(e))
    found: dict[Expr, None] = {}
    pending, met = list(roots), set(roots)
    while pending:
        e = pending.pop()
        if fixed[e] and isinstance(e, (Op, Cast)) and e.dtype in ("f32", "f64") and cost(e) >= LEAST_KEPT:
            found[e] = None
            continue
        fresh = [part for part in children(e) if part not in met]
        pending += fresh
        met.update(fresh)
    return list(found)


def _along(r: Rendering, tile: Tile, inside: Callable[[], None]) -> None:
    """Run `inside` for each block of lanes of the tile."""

    def block() -> None:
        r.ref_level = len(r.levels) - 1
        inside()

    lane_blocks(r, tile.lane, tile.first, tile.last, block)


def _running(r: Rendering, tile: Tile, spec: Accumulate) -> Running:
    found = running(r, spec, tile.width, tile.first)
    _along(r, tile, lambda: found.reset(r))
    return found


def _carry(r: Rendering, tile: Tile, scan: Scan) -> None:
    """Room for what a scan carries in each lane of the tile, and its start there."""
    start, kind = scan.start, DTYPES[scan.value.dtype].register
    assert start is not None  # the others are those of GPUs
    array = r.room(f"[{tile.width + r.lanes} x {kind}]")
    _along(r, tile, lambda: put_in_tile(r, array, tile.first, emit(r, start)))
    r.arrays[scan.name] = (array, tile.first, kind)


def _stores(r: Rendering, stores: tuple[Store, ...]) -> None:
    for store in stores:
        emit_store(r, store)


def _rows(r: Rendering, tile: Tile, loops: list[Var], one: RowPass, columns: list[Running]) -> None:
    """The row loops from the outside in, the tile's lanes innermost; long sums are flushed after blocks of rows."""
    var, *rest = loops
    end, sure = r.size_of(var.size), surely_positive(var.size)
    blocked = any(c.total is not None for c in columns)

    def inside() -> None:
        if rest:
            _rows(r, tile, rest, one, columns)
        else:
            _along(r, tile, lambda: _step(r, one, columns))

    if rest or not blocked or surely_at_least(BLOCK_STEPS, var.size):
        with opened_loop(r, constant(0, "i64"), end, 1, var, sure):
            inside()
    else:
        blocked_loop(r, end, BLOCK_STEPS, 1, var, inside, lambda: _flush(r, tile, columns), sure)
    if blocked and not rest and r.kernel.row[0] is not var:
        _flush(r, tile, columns)


def _step(r: Rendering, one: RowPass, columns: list[Running]) -> None:
    for c in columns:
        c.step(r)
    carried = [(r.arrays[scan.name], emit(r, scan.value)) for scan in one.scans]
    for check in one.checks:
        emit_check(r, check, r.kernel.checks.index(check))
    if r.kernel.writes_what_it_reads and one.scans:
        for store in one.stores:
            emit(r, store.value)
    _stores(r, one.stores)
    for (array, first, _), value in carried:
        put_in_tile(r, array, first, value)


def _flush(r: Rendering, tile: Tile, columns: list[Running]) -> None:
    """Add the running values to the totals and start again."""

    def block() -> None:
        for c in columns:
            c.flush(r)

    _along(r, tile, block)

"""The loops, passes and scans of one kernel as lines of a Triton function, for one program of its grid."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr, Ref, loads, walk
from framesmith_backends.ir.kernel import Accumulate, RowPass, Scan
from framesmith_backends.ir.ops import REDUCTIONS, SCANS
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import surely_at_least
from framesmith_backends.render.triton import tile_rules
from framesmith_backends.render.triton.emit import emit, emit_check, emit_store, number_text, operation
from framesmith_backends.render.triton.joined import Distances, Exponentials
from framesmith_backends.render.triton.state import Writing
from framesmith_backends.render.triton.tile import Axis, joined, part_of_row, row_axes
from framesmith_backends.target import BYTES_IN_TURN

# Where a program takes rows in turn: while some are reduced, all but one of so many steps are on their way to shared
# memory, if a launch gives as much.
STAGES = 3
# Steps of a scan that are unrolled, so that what they read is on its way at once.
UNROLLED_STEPS = 4


def write_program(w: Writing) -> None:
    """Name the outer variables from the program's number, those of the tile's axes last; write the passes."""
    k, tile = w.kernel, w.tile
    along = [v for v in tile.variables if v in k.outer and v not in k.down]
    loops = [*(v for v in k.outer if v not in (*along, *k.down)), *along]
    point = "pid"
    for position, var in enumerate(reversed(loops)):
        w.level_of[var] = 0
        number = point
        if position < len(loops) - 1:
            parts = w.size(tile.count(var))
            number = f"{point} % {parts}"
            point = w.fresh(f"{point} // {parts}", w.here)
        axis = tile.of(var)
        if axis is None:
            w.variables[var] = w.fresh(number, w.here)
        else:
            _open_lanes(w, var, w.fresh(f"{number} * {axis.block} + {tile.lanes(var)}.to({w.integer})", w.here))
    if k.down:
        _rows_in_turn(w)
    else:
        _passes(w)


def _rows_in_turn(w: Writing) -> None:
    """The passes for one row after another, and what is combined down columns."""
    (down,), (lane,) = w.kernel.down, w.kernel.row
    axis, row = w.tile.of(down), w.tile.of(lane)
    assert row is not None
    _row_lanes(w, row)
    columns = [a for one in w.kernel.passes for a in one.columns]
    w.cells.update((a.name, _start(w, a)) for a in columns)
    number, depth = f"r_{down.name}", len(w.scopes)
    step = 1 if axis is None else axis.block
    stages = STAGES if tile_rules.bytes_in_turn(w.kernel) * w.tile.elements <= BYTES_IN_TURN else 1
    w.open_loop(f"tl.range(0, {w.size(down.size)}, {step}, num_stages={stages})", number)
    if axis is None:
        w.level_of[down] = depth
        w.variables[down] = w.fresh(f"tl.full([], {number}, {w.integer})", w.here)
    else:
        _open_lanes(w, down, w.fresh(f"{number} + {w.tile.lanes(down)}.to({w.integer})", w.here))
    w.base = depth
    _passes(w)
    w.base = 0
    w.close(depth)
    for a in columns:
        cell = w.cells[a.name]
        w.refs[a.name] = _reduced(w, a.kind, cell, () if axis is None else (axis,))
    _row_lanes(w, row)
    for store in w.kernel.after:
        emit_store(w, store)


def _passes(w: Writing) -> None:
    k = w.kernel
    stored: set[str] = set()
    written = -1
    for at, one in enumerate(k.passes):
        if at <= written:
            continue
        if stored & {load.source for load in loads(*one.values)}:
            # What other threads of the program have written is seen after this.
            w.line("tl.debug_barrier()")
            stored.clear()
        for store in one.before:
            emit_store(w, store)
        if _joined_passes(w, at):
            written = at + 1
            for store in k.passes[written].before:
                emit_store(w, store)
                stored.add(store.buffer)
        elif one.has_loop:
            _pass(w, one)
        stored |= {store.buffer for store in (*one.before, *one.stores)}


def _open_lanes(w: Writing, var: Var, name: str, level: int | None = None) -> None:
    """The variable as the lanes of that name along its axis, and what of them lies in the loop.

    `level` is the scope in which they are known, otherwise this one.
    """
    w.level_of[var] = len(w.scopes) - 1 if level is None else level
    scope = w.scopes[w.level_of[var]]
    w.variables[var] = name
    axis = w.tile.of(var)
    assert axis is not None
    if (axis.block != var.size) if _is_held(w, axis) and var in w.kernel.row else (var.size % axis.block != 0):
        known = scope.names.get(("mask", name))
        if known is None:
            known = scope.names["mask", name] = w.fresh(f"{name} < {w.step(var.size)}", scope)
        w.masks[var] = known


def _is_held(w: Writing, axis: Axis) -> bool:
    """Whether the whole loop is in the tile."""
    return w.whole or surely_at_least(axis.block, axis.var.size)


def _pass(w: Writing, one: RowPass) -> None:
    k = w.kernel
    along = row_axes(w.kernel, w.tile)
    inner = along[-1] if along else None
    held = inner is not None and _is_held(w, inner)
    cells = [_start(w, a) for a in one.reductions]
    stepping = [(s, _begun(w, s)) for s in one.scans if s.start is not None]
    scans = [s for s in one.scans if s.start is None]
    carries = [None if held else _carried(w, s, inner) for s in scans]
    backwards = any(s.reverse for s in one.scans)
    depth = len(w.scopes)
    _open_row(w, backwards=backwards)
    w.refs.update((s.name, carry) for s, carry in stepping)
    w.ref_levels.update((s.name, len(w.scopes) - 1) for s, _ in stepping)
    after = [(carry, w.fresh(_whole(w, emit(w, s.value)), w.here)) for s, carry in stepping]
    for carry, s in zip(carries, scans, strict=True):
        if s.name not in w.refs:  # of a row that is held it may be known
            _scan(w, s, carry, inner)
    for cell, a in zip(cells, one.reductions, strict=True):
        _accumulate(w, cell, a, along)
    for a in one.columns:
        _accumulate(w, w.cells[a.name], a, ())
    for check in one.checks:
        emit_check(w, check)
    if k.writes_what_it_reads and not k.updates:
        for store in one.stores:
            emit(w, store.value)
    for store in one.stores:
        emit_store(w, store)
    for carry, value in after:
        w.line(f"{carry} = {value}")
    _close_row(w, depth, along)
    if not held:
        for s in one.scans:
            del w.refs[s.name]
    for cell, a in zip(cells, one.reductions, strict=True):
        w.refs[a.name] = _reduced(w, a.kind, cell, along)


def _reduced(w: Writing, kind: str, cell: str, along: Sequence[Axis]) -> str:
    """The reduction of a tile along the row's axes, which stay, of one element; a flat tile has no other axis."""
    if not along:
        return cell
    assert len(along) == (len(w.tile.axes) if w.tile.flat else 1)
    at = 0 if w.tile.flat else w.tile.axes.index(along[0])
    return w.fresh(
        REDUCTIONS[kind].triton.format(name=kind, x=cell, axis=at, keep=len(w.tile.axes) > len(along)), w.here
    )


def _joined_passes(w: Writing, number: int) -> bool:
    """Write that pass and the next as one, where they may be and the tile does not hold what both read."""
    how = () if w.whole else joined(w.kernel, w.tile, number)
    if not how:
        return False
    pairs = [pair for pair in how if isinstance(pair, Exponentials)]
    if pairs:
        _exponentials(w, pairs)
    distances = [d for d in how if isinstance(d, Distances)]
    if distances:
        _estimates(w, distances)
        _pass(w, w.kernel.passes[number + 1])
        for d in distances:
            _exact(w, d)
        _forget(w, {a.name for d in distances for a in (d.total, d.rest, d.squares) if a is not None})
    return True


def _exponentials(w: Writing, pairs: Sequence[Exponentials]) -> None:
    """Each lane's largest element and its sum of exponentials below that; a row's of those of its lanes."""
    tops, totals = [_start(w, pair.top) for pair in pairs], [_start(w, pair.total) for pair in pairs]
    depth = len(w.scopes)
    along = _open_row(w)
    for pair, top, total in zip(pairs, tops, totals, strict=True):
        value = w.fresh(_within(w, pair.top, along), w.here)
        power = w.fresh(f"fs.exp(fs.negative_distance({value}, {top}))", w.here)
        w.line(f"{total} = tl.where({value} > {top}, {total} * {power} + 1.0, {total} + {power})")
        w.line(f"{top} = fs.max({value}, {top})")
    _close_row(w, depth, along)
    for pair, top, total in zip(pairs, tops, totals, strict=True):
        w.refs[pair.top.name] = whole = _reduced(w, "max", top, along)
        # A row that has an infinity, or nothing but those below, is known by no more than this: there the sum is NaN.
        scaled = w.fresh(f"{total} * fs.exp({top} - {whole})", w.here)
        w.refs[pair.total.name] = _reduced(w, "sum", scaled, along)


def _estimates(w: Writing, distances: Sequence[Distances]) -> None:
    """The sums, estimated from the first part of the row."""
    cells = [_start(w, d.total) for d in distances]
    depth = len(w.scopes)
    part = part_of_row(w.kernel, w.tile)
    assert part is not None  # else the passes are not joined
    length, seen = part
    along = _open_row(w, part=length)
    for cell, d in zip(cells, distances, strict=True):
        _accumulate(w, cell, d.total, along)
    _close_row(w, depth, along)
    for cell, d in zip(cells, distances, strict=True):
        found = _reduced(w, "sum", cell, along)
        guess = w.fresh(f"{found} * {d.count / seen}", w.here)
        # What is not finite is met again, among the distances from zero then.
        w.refs[d.total.name] = w.fresh(f'tl.where(tl.abs({guess}) < float("inf"), {guess}, 0.0)', w.here)


def _exact(w: Writing, d: Distances) -> None:
    """The sums about the mean of those about its estimate: nothing is left of the distances themselves."""
    rest = w.refs[d.rest.name]
    if d.squares is not None:
        squares = w.refs[d.squares.name]
        count = f"tl.full([], {float(d.count)}, {DTYPES[d.rest.value.dtype].triton})"
        w.refs[d.squares.name] = w.fresh(f"fs.less_square({squares}, {rest}, {count})", w.here)
    w.refs[d.total.name] = w.fresh(f"{w.refs[d.total.name]} + {rest}", w.here)
    w.refs[d.rest.name] = w.fresh(f"{rest} * 0.0", w.here)


def _forget(w: Writing, changed: Collection[str]) -> None:
    """Drop the names of what was computed of these reductions' results."""
    for scope in w.scopes:
        for key in [key for key in scope.names if isinstance(key, tuple) and isinstance(key[0], Expr)]:
            if any(isinstance(node, Ref) and node.name in changed for node in walk(key[0])):
                del scope.names[key]


def _open_row(w: Writing, part: int | None = None, backwards: bool = False) -> tuple[Axis, ...]:
    """Open the loops over the row, and return its axes in the tile.

    With `part` so far along the first axis, and the first step of loops outside the tile.
    """
    k, along = w.kernel, row_axes(w.kernel, w.tile)
    w.rows = k.row
    for var in (v for v in k.row if all(axis.var is not v for axis in along)):
        count = w.size(var.size) if part is None else "1"
        over = f"tl.range(0, {count}, 1, loop_unroll_factor={UNROLLED_STEPS})" if k.steps else f"range({count})"
        w.open_loop(over, f"r_{var.name}")
        w.level_of[var] = len(w.scopes) - 1
        # A loop's number has 32 bits where its end has.
        number = f"{w.size(var.size - 1)} - r_{var.name}" if backwards else f"r_{var.name}"
        w.variables[var] = w.fresh(f"tl.full([], {number}, {w.integer})", w.here)
    for axis in along:
        _row_lanes(w, axis, part, backwards)
    return along


def _close_row(w: Writing, depth: int, along: Sequence[Axis]) -> None:
    w.close(depth)
    w.rows = ()
    for axis in along:
        w.masks.pop(axis.var, None)


def _row_lanes(w: Writing, axis: Axis, part: int | None = None, backwards: bool = False) -> None:
    """The lanes along the row: all at once if the tile covers the row, else in a loop, which may begin at its end."""
    lanes = f"{w.tile.lanes(axis.var)}.to({w.integer})"
    if _is_held(w, axis):
        level = 0 if w.kernel.down else len(w.scopes) - 1
        known = w.scopes[level].names.get(("lanes", axis))
        if known is None:
            known = w.scopes[level].names["lanes", axis] = w.fresh(lanes, w.scopes[level])
        _open_lanes(w, axis.var, known, level)
        return
    start = f"start{w.count}"
    end = w.size(axis.var.size) if part is None else part
    last = w.size((axis.count - 1) * axis.block) if backwards else ""
    w.open_loop(f"range(0, {end}, {axis.block})", start)
    if backwards:
        start = w.fresh(f"tl.full([], {last} - {start}, {w.integer})", w.here)
    _open_lanes(w, axis.var, w.fresh(f"{start} + {lanes}", w.here))


def _start(w: Writing, a: Accumulate) -> str:
    shape = w.tile.shape(w.tile.variables) or "[]"
    return w.fresh(f"tl.full({shape}, {_start_text(a)}, {DTYPES[a.value.dtype].triton})", w.here)


def _start_text(a: Accumulate | Scan) -> str:
    row = SCANS[a.kind] if isinstance(a, Scan) else REDUCTIONS[a.kind]
    return number_text(row.start(a.value.dtype), a.value.dtype)


def _accumulate(w: Writing, cell: str, a: Accumulate, along: Sequence[Axis]) -> None:
    value = _within(w, a, along)
    w.line(f"{cell} = {operation(REDUCTIONS[a.kind].combine, (value, cell), a.value.dtype)}")


def _within(w: Writing, a: Accumulate, along: Sequence[Axis]) -> str:
    """The value that is accumulated; beyond the end of the row what changes nothing."""
    value = emit(w, a.value)
    mask = w.mask([axis.var for axis in along])
    if mask is None:
        return value
    return f"tl.where({mask}, {value}, {_start_text(a)})"


def _carried(w: Writing, s: Scan, along: Axis | None) -> str:
    """The value carried into the first tile; `along` is the axis of the tile that lies in the row."""
    others = [axis.var for axis in w.tile.axes if axis is not along]
    shape = w.tile.shape(others) or "[]"
    return w.fresh(f"tl.full({shape}, {_start_text(s)}, {DTYPES[s.value.dtype].triton})", w.here)


def _begun(w: Writing, s: Scan) -> str:
    """The value that a scan by steps carries to the first point."""
    assert s.start is not None
    dtype = DTYPES[DTYPES[s.value.dtype].compute].triton
    return w.fresh(f"{_whole(w, emit(w, s.start))}.to({dtype})", w.here)


def _whole(w: Writing, value: str) -> str:
    """The value as one of the tile's shape."""
    shape = w.tile.shape(w.tile.variables)
    return value if shape is None else f"tl.broadcast_to({value}, {shape})"


def _scan(w: Writing, s: Scan, carry: str | None, along: Axis | None) -> None:
    """Names the scan at the points of the tile; with a `carry` what came before is part of it, and goes on."""
    value = _whole(w, emit(w, s.value))
    if along is None:
        assert carry is not None
        w.line(f"{carry} = {_combined(s, carry, value)}")
        name = w.fresh(carry, w.here)
    else:
        mask = w.mask((along.var,)) if s.reverse else None
        if mask is not None:  # what is beyond the row comes first
            value = f"tl.where({mask}, {value}, tl.full([], {_start_text(s)}, {DTYPES[s.value.dtype].triton}))"
        at = w.tile.axes.index(along)
        name = w.fresh(f"fs.scan_{s.kind}({value}, {at}, {s.reverse})", w.here)
        if carry is not None:
            name = w.fresh(_combined(s, carry, name), w.here)
            last = f"{w.tile.lanes(along.var)} == {0 if s.reverse else along.block - 1}"
            w.line(f"{carry} = fs.element_at({name}, {last}, {at}, {len(w.tile.axes) > 1})")
    w.refs[s.name] = name
    w.ref_levels[s.name] = len(w.scopes) - 1


def _combined(s: Scan, before: str, value: str) -> str:
    """Both combined. Of equal extremes the later one is taken, which a zero's sign shows."""
    if s.kind in ("max", "min"):
        return f"fs.{'larger' if s.kind == 'max' else 'smaller'}({before}, {value})"
    return operation(SCANS[s.kind].combine, (before, value), s.value.dtype)

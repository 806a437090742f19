"""Cumulative sums, products, extremes and log-sum-exps as LLVM IR: a module for each `Scan`.

Note [Lines]: elements that are joined one after another form a line; the lanes of a vector are that many lines, each
joined in the order of its elements. Lines side by side (`across`) are read along rows, a tile of them at a time, whose
states stay in the L1 cache between rows. Contiguous lines are read in squares that are transposed in registers, so that
each cache line is read, and written, at once.

Note [Chunks]: too few lines for the lanes are split into chunks, which are lines again: the first pass computes the
total of each ("totals"), these are joined, and then each chunk goes on from the total of those before it ("rest").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from framesmith_backends.ir.dtypes import DTYPES, extremes
from framesmith_backends.native_ops.job import BEGIN, END, Job, OperatorModule, array, entry, threaded
from framesmith_backends.render.llvm.builder import Value, constant, element_bytes
from framesmith_backends.render.llvm.loops.transposed import transposed
from framesmith_backends.render.llvm.math import float64 as double
from framesmith_backends.render.llvm.ops import emit_cast, from_memory, to_memory
from framesmith_backends.render.llvm.writer import ZERO, Writer
from framesmith_backends.target import Processor

#: In elements: `count` those of a line, `inner` the lines side by side, `outer` the number of groups of such, or of
#: lines, `stride` from one line to the next, `width` of a tile; `first` is the index of the first element. `states` has
#: `slots` of each part of a state.
JOB = Job("ptr source", "ptr values", "ptr indices", "ptr states", "i64 slots", "i64 outer", "i64 count", "i64 inner",
          "i64 stride", "i64 width", "i64 first")  # fmt: skip
#: The largest width of a tile, in elements, and the rows of it that are read between two visits of a state.
MOST_WIDTH, ROWS = 512, 4
#: Bytes of a cache line, and the most squares that are read at once to have whole ones.
LINE, MOST_SQUARES = 64, 2
#: Elements by which a line is prefetched.
AHEAD = 128
#: Bytes of a part of a state in `states`.
SLOT = 8

State = tuple[Value, ...]


class Scan(NamedTuple):
    """`source` and `result` name types of `ir.dtypes`; from the end if `reverse`. See the notes for the rest."""

    kind: str
    source: str
    result: str
    across: bool
    reverse: bool = False
    part: str = "whole"


def held_kind(scan: Scan) -> str:
    """The LLVM type that elements are joined in: ATen's, and double for log-sum-exps."""
    in_double = not KINDS[scan.kind].has_indices and (scan.result == "f32" or scan.kind == "logsumexp")
    return "double" if in_double else DTYPES[scan.result].register


@dataclass(frozen=True, slots=True)
class Kind:
    """The state before the first element of a type, and the join of a state with a later one."""

    start: Callable[[str], tuple[float, ...]]
    joined: Callable[[Writer, State, State], State]
    value: Callable[[Writer, State], Value] = lambda w, state: state[0]
    has_indices: bool = False
    is_long: bool = False


def _extreme(floating: str, integer: str) -> Callable[[Writer, State, State], State]:
    """The later of equal ones; NaN beats all others, a later NaN those before it."""

    def joined(w: Writer, before: State, after: State) -> State:
        if before[0].kind in ("float", "double"):
            wins = w.compare(floating, after[0], before[0])  # not over NaN
            wins = w.binary("or", wins, w.compare("uno", after[0], after[0]))
        else:
            wins = w.compare(integer, after[0], before[0])
        return w.select(wins, after[0], before[0]), w.select(wins, after[1], before[1])

    return joined


def _joined_logarithms(w: Writer, before: State, after: State) -> State:
    """The larger exponent, and the sum of e to the others less it, so that a large one loses nothing beside it."""
    gap = w.sub(after[0], before[0])
    gap = w.select(w.compare("oeq", after[0], before[0]), w.number(0.0, gap), gap)  # also where both are infinite
    e = double.exp(w, w.neg(w.intrinsic("fabs", gap)))
    larger = w.compare("ugt", gap, 0.0)  # a NaN behind others is an exponent; one before others stays in the sums
    ahead = w.add(w.mul(w.add(before[1], 1.0), e), after[1])
    behind = w.add(w.mul(w.add(after[1], 1.0), e), before[1])
    return w.select(larger, after[0], before[0]), w.select(larger, ahead, behind)


KINDS: dict[str, Kind] = {
    "sum": Kind(lambda dtype: (0,), lambda w, a, b: (w.add(a[0], b[0]),)),
    "prod": Kind(lambda dtype: (1,), lambda w, a, b: (w.mul(a[0], b[0]),)),
    "max": Kind(lambda dtype: (extremes(dtype)[0], 0), _extreme("oge", "sge"), has_indices=True),
    "min": Kind(lambda dtype: (extremes(dtype)[1], 0), _extreme("ole", "sle"), has_indices=True),
    "logsumexp": Kind(lambda dtype: (-math.inf, 0.0), _joined_logarithms,
                        lambda w, state: w.add(state[0], double.log1p(w, state[1])), is_long=True),
}  # fmt: skip


def lanes_of(scan: Scan, target: Processor) -> int:
    """Lines joined at once: a register of those side by side, half of one of those that are transposed."""
    wide = DTYPES[scan.result].bits == 64 or not (scan.across or KINDS[scan.kind].is_long)
    return target.bytes // (8 if wide else 4)


def render_scan(scan: Scan, target: Processor) -> str:
    """A module with `void fs_scan(ptr job, i64 extent, i32 threads)`, whose points are tiles, or each `lanes` lines.

    And with `void fs_join(ptr job)`, which replaces the total of each line by that of all lines before it.
    """
    module = OperatorModule(target)
    scans = _Scans(scan, module.writer(), lanes_of(scan, target))
    body = scans.tiles() if scan.across else scans.lines()
    join = _Scans(scan, module.writer(), 1).join()
    return module.text(body, join, entry("fs_scan", {"fs.part": "extent"}))


class _Scans:
    """Writes the functions of one scan."""

    def __init__(self, scan: Scan, w: Writer, lanes: int) -> None:
        self.scan, self.w, self.lanes, self.kind = scan, w, lanes, KINDS[scan.kind]
        self.held = held_kind(scan)
        self.read, self.written = DTYPES[scan.source].memory, DTYPES[scan.result].memory
        self.squares = max(1, min(MOST_SQUARES, LINE // (lanes * element_bytes(self.written))))
        start = self.kind.start(scan.result)
        #: The LLVM types of a state's parts.
        self.kinds = [self.held, "i32" if self.kind.has_indices else self.held][: len(start)]
        self.starts = [constant(one, kind, lanes) for one, kind in zip(start, self.kinds, strict=True)]
        #: The columns of a square in the order in which they are joined.
        self.order = range(lanes)[:: -1 if scan.reverse else 1]
        self.job = JOB.load(w)

    # One vector of elements.

    def element(self, raw: Value) -> Value:
        """A loaded element, converted to the result's type in registers."""
        return emit_cast(self.w, from_memory(self.w, raw, self.scan.source), self.scan.source, self.scan.result)

    def step(self, state: State, element: Value, index: Value) -> tuple[State, list[Value]]:
        """The next state, and the results there, in registers: the value, and its index."""
        w = self.w
        if element.kind != self.held:
            element = w.convert("fpext", element, self.held)
        second = {1: (), 2: (index if self.kind.has_indices else w.number(0.0, element),)}[len(self.kinds)]
        state = self.kind.joined(w, state, (element, *second))
        if self.scan.part == "totals":
            return state, []
        value = self.kind.value(w, state)
        if value.kind in ("float", "double"):
            value = emit_cast(w, value, "f32" if value.kind == "float" else "f64", self.scan.result)
        return state, [value, state[1]] if self.kind.has_indices else [value]

    def stored(self, result: Value, which: int) -> Value:
        """A result as it is in memory."""
        if which:
            return self.w.convert("sext", result, "i64")
        return to_memory(self.w, result, self.scan.result)

    def where(self, which: int) -> tuple[Value, str]:
        """The address of results, and their type."""
        return (self.job["indices"], "i64") if which else (self.job["values"], self.written)

    # Lines side by side.

    def tiles(self) -> str:
        w, job = self.w, self.job
        cells = [array(w, MOST_WIDTH, kind) for kind in self.kinds]
        tiles = w.binary("udiv", w.sub(w.add(job["inner"], job["width"]), 1), job["width"])
        with w.loop(BEGIN, END) as task:
            group, tile = w.binary("udiv", task, tiles), w.binary("urem", task, tiles)
            first = w.mul(tile, job["width"])
            width = w.least(w.sub(job["inner"], first), job["width"])
            start = w.add(w.mul(w.mul(group, job["count"]), job["inner"]), first)
            with w.loop(ZERO, width, self.lanes) as v:
                for cell, kind, value in zip(cells, self.kinds, self.starts, strict=True):
                    w.store(value, w.at(cell, v, kind))
            whole = w.mul(w.binary("udiv", job["count"], ROWS), ROWS)
            with w.loop(ZERO, whole, ROWS) as row:
                self.rows(cells, start, row, width, ROWS)
            with w.loop(whole, job["count"]) as row:
                self.rows(cells, start, row, width, 1)
        return threaded(w, "fs.part")

    def rows(self, cells: Sequence[Value], start: Value, row: Value, width: Value, rows: int) -> None:
        """Some rows of a tile, from the `row`-th to be joined on."""
        w, lanes = self.w, self.lanes
        whole = w.binary("and", width, -lanes)
        starts = []
        for at in (w.add(row, k) for k in range(rows)):
            at = w.sub(w.sub(self.job["count"], at), 1) if self.scan.reverse else at
            starts.append(w.add(start, w.mul(at, self.job["inner"])))
        with w.loop(ZERO, whole, lanes) as v:
            self.columns(cells, starts, row, v, None)
        with w.when(w.compare("ult", whole, width)):
            self.columns(cells, starts, row, whole, w.first_lanes(w.sub(width, whole), lanes))

    def columns(
        self, cells: Sequence[Value], starts: Sequence[Value], row: Value, v: Value, mask: Value | None
    ) -> None:
        w, lanes = self.w, self.lanes
        spots = [w.at(cell, v, kind) for cell, kind in zip(cells, self.kinds, strict=True)]
        state: State = tuple(w.load(spot, kind, lanes) for spot, kind in zip(spots, self.kinds, strict=True))
        elements = [self.vector(w.add(at, v), mask) for at in starts]
        for k, (at, raw) in enumerate(zip(starts, elements, strict=True)):
            index = w.splat(w.convert("trunc", w.add(row, k), "i32"), lanes)
            state, results = self.step(state, self.element(raw), index)
            for which, result in enumerate(results):
                base, kind = self.where(which)
                self.put(self.stored(result, which), w.at(base, w.add(at, v), kind), mask)
        for spot, value in zip(spots, state, strict=True):
            w.store(value, spot)

    def vector(self, offset: Value, mask: Value | None) -> Value:
        spot = self.w.at(self.job["source"], offset, self.read)
        if mask is not None:
            return self.w.masked_load(spot, mask, self.read)
        return self.w.load(spot, self.read, self.lanes, element_bytes(self.read))

    def put(self, value: Value, spot: Value, mask: Value | None) -> None:
        if mask is not None:
            self.w.masked_store(value, spot, mask)
        else:
            self.w.store(value, spot, element_bytes(value.kind))

    # Contiguous lines.

    def lines(self) -> str:
        w, job, lanes = self.w, self.job, self.lanes
        with w.loop(BEGIN, END) as task:
            lines = [w.least(w.add(w.mul(task, lanes), k), w.sub(job["outer"], 1)) for k in range(lanes)]
            starts = [w.mul(line, job["stride"]) for line in lines]
            state = self.first_state(lines)
            cells = [w.cell(value) for value in state]
            first = w.splat(ZERO, lanes)
            if self.scan.part != "whole" and self.kind.has_indices:
                first = self.gathered([w.add(start, job["first"]) for start in starts])
            whole = w.binary("and", job["count"], -lanes * self.squares)
            with w.when(w.compare("ne", whole, 0)):
                self.whole_squares(starts, cells, first, whole)
            if self.scan.part != "totals":  # of which no state is asked for
                with w.loop(whole, job["count"], lanes) as at, self.carried(cells) as states:
                    self.last_square(starts, states, first, at)
            else:
                with w.loop(whole, job["count"]) as at, self.carried(cells) as states:
                    self.column(starts, states, first, at)
                self.put_states(lines, [w.read(cell, k, lanes) for cell, k in zip(cells, self.kinds, strict=True)])
        return threaded(w, "fs.part")

    @contextmanager
    def carried(self, cells: Sequence[Value]) -> Iterator[list[Value]]:
        """The state in the cells, as a list whose values are stored there at the end."""
        states = [self.w.read(cell, kind, self.lanes) for cell, kind in zip(cells, self.kinds, strict=True)]
        yield states
        for cell, value in zip(cells, states, strict=True):
            self.w.store(value, cell, 0)

    def gathered(self, values: Sequence[Value]) -> Value:
        """A vector of scalars."""
        if len(values) == 1:
            return values[0]
        kind, lanes = values[0].kind, len(values)
        found = Value("poison", kind, lanes)
        for k, value in enumerate(values):
            found = self.w.emit(f"insertelement {found.typed}, {value.typed}, i64 {k}", kind, lanes)
        return found

    def index_of(self, first: Value, at: Value) -> Value:
        return self.w.convert("trunc", self.w.add(first, at), "i32")

    def whole_squares(self, starts: Sequence[Value], cells: Sequence[Value], first: Value, whole: Value) -> None:
        """Cache lines of as many lines as there are lanes, one after another, up to the `whole`-th element.

        Each is read before the one ahead of it is written: a read of an address whose last 12 bits are those of one
        just written waits for that write.
        """
        w, step = self.w, self.lanes * self.squares
        last = w.sub(whole, step)
        ahead = [w.cell(raw) for raw in self.read_squares(starts, ZERO)]
        with w.loop(ZERO, whole, step) as at, self.carried(cells) as states:
            raw = [w.read(cell, self.read, self.lanes) for cell in ahead]
            written = []
            for k, start in enumerate(self.squares_at(at)):
                columns = self.columns_of(raw[k * self.lanes : (k + 1) * self.lanes])
                written.append(self.rows_of(self.joined(columns, states, first, start)))
            for cell, one in zip(ahead, self.read_squares(starts, w.least(w.add(at, step), last)), strict=True):
                w.store(one, cell, 0)
            for rows, start in zip(written, self.squares_at(at), strict=True):
                self.write_square(rows, self.spots(starts, start))

    def squares_at(self, at: Value) -> list[Value]:
        """The first element of each of the squares that are read at once, in the order in which they are joined."""
        return [self.w.add(at, k * self.lanes) for k in range(self.squares)]

    def last_square(self, starts: Sequence[Value], states: list[Value], first: Value, at: Value) -> None:
        """The rest of each line. Missing elements are joined last: the state behind them is not read."""
        w, spots = self.w, self.spots(starts, at)
        left = w.least(w.sub(self.job["count"], at), self.lanes)
        mask = w.first_lanes(left, self.lanes)
        if self.scan.reverse:
            none = w.first_lanes(w.sub(constant(self.lanes, "i64"), left), self.lanes)
            mask = w.binary("xor", none, constant(True, "i1", self.lanes))
        columns = self.columns_of([self.vector(spot, mask) for spot in spots])
        self.write_square(self.rows_of(self.joined(columns, states, first, at, left)), spots, mask)

    def spots(self, starts: Sequence[Value], at: Value) -> list[Value]:
        """The start of each row of a square, which has the elements that are joined from the `at`-th on."""
        w = self.w
        from_start = w.sub(w.sub(self.job["count"], at), self.lanes) if self.scan.reverse else at
        return [w.add(start, from_start) for start in starts]

    def read_squares(self, starts: Sequence[Value], at: Value) -> list[Value]:
        w, ahead = self.w, -AHEAD if self.scan.reverse else AHEAD
        for spot in self.spots(starts, at):
            w.prefetch(w.at(self.job["source"], w.add(spot, ahead), self.read))
        return [self.vector(spot, None) for start in self.squares_at(at) for spot in self.spots(starts, start)]

    def columns_of(self, raw: Sequence[Value]) -> list[Value]:
        return transposed(self.w, [self.element(one) for one in raw])

    def rows_of(self, results: Sequence[Sequence[Value]]) -> list[list[Value]]:
        """The rows of each result of a step, as they are in memory."""
        kinds = range(len(results[0]))
        rows = [transposed(self.w, [column[which] for column in results]) for which in kinds]
        return [[self.stored(row, which) for row in rows[which]] for which in kinds]

    def write_square(self, rows: Sequence[Sequence[Value]], spots: Sequence[Value], mask: Value | None = None) -> None:
        for which, lines in enumerate(rows):
            base, kind = self.where(which)
            for spot, row in zip(spots, lines, strict=True):
                self.put(row, self.w.at(base, spot, kind), mask)

    def joined(
        self, columns: Sequence[Value], states: list[Value], first: Value, at: Value, left: Value | None = None
    ) -> list[list[Value]]:
        """The results of each column, or of the first so many that are joined."""
        if self.kind.is_long:
            return self.joined_by_loop(columns, states, constant(self.lanes, "i64") if left is None else left)
        found: list[list[Value]] = [[] for _ in columns]
        for k, column in enumerate(self.order):
            index = self.index_of(first, self.w.add(at, k))
            states[:], found[column] = self.step(tuple(states), columns[column], index)
        return found

    def joined_by_loop(self, columns: Sequence[Value], states: list[Value], count: Value) -> list[list[Value]]:
        """The same by a loop over the first `count` columns, for a step that is too long to be written for each."""
        w, lanes, kind = self.w, self.lanes, columns[0].kind
        square = array(w, lanes * lanes, kind)
        spots = [w.at(square, k * lanes, kind) for k in range(lanes)]
        for spot, column in zip(spots, self.order, strict=True):
            w.store(columns[column], spot)
        cells = [w.cell(value) for value in states]
        with w.loop(ZERO, count) as k, self.carried(cells) as now:
            spot = w.at(square, w.mul(k, lanes), kind)
            now[:], results = self.step(tuple(now), w.load(spot, kind, lanes), k)
            for result in results:
                w.store(result, spot)
        states[:] = [w.read(cell, kind, lanes) for cell, kind in zip(cells, self.kinds, strict=True)]
        found: list[list[Value]] = [[] for _ in columns]
        for spot, column in zip(spots, self.order, strict=True):
            found[column] = [] if self.scan.part == "totals" else [w.load(spot, kind, lanes)]
        return found

    def column(self, starts: Sequence[Value], states: list[Value], first: Value, at: Value) -> None:
        """Join one element of each line, without storing a result."""
        w = self.w
        from_start = w.sub(w.sub(self.job["count"], at), 1) if self.scan.reverse else at
        spots = [w.at(self.job["source"], w.add(start, from_start), self.read) for start in starts]
        raw = self.gathered([w.load(spot, self.read, 1, element_bytes(self.read)) for spot in spots])
        states[:], _ = self.step(tuple(states), self.element(raw), self.index_of(first, at))

    # Chunks.

    def spot(self, part: int, line: Value) -> Value:
        return self.w.at(self.job["states"], self.w.add(self.w.mul(self.job["slots"], part), line), "i64")

    def first_state(self, lines: Sequence[Value]) -> State:
        if self.scan.part != "rest":
            return tuple(self.starts)
        return tuple(
            self.gathered([self.w.load(self.spot(part, line), kind) for line in lines])
            for part, kind in enumerate(self.kinds)
        )

    def put_states(self, lines: Sequence[Value], state: Sequence[Value]) -> None:
        w = self.w
        for part, value in enumerate(state):
            for k, line in enumerate(lines):
                one = w.emit(f"extractelement {value.typed}, i64 {k}", value.kind) if value.lanes > 1 else value
                w.store(one, self.spot(part, line))

    def join(self) -> str:
        """Store the total of all lines before each, and at last of all of them."""
        w, job = self.w, self.job
        cells = [w.cell(value) for value in self.starts]
        with w.loop(ZERO, job["outer"]) as turn, self.carried(cells) as states:
            line = w.sub(w.sub(job["outer"], turn), 1) if self.scan.reverse else turn
            total: State = tuple(w.load(self.spot(part, line), kind) for part, kind in enumerate(self.kinds))
            self.put_states([line], states)
            states[:] = self.kind.joined(w, tuple(states), total)
        self.put_states([job["outer"]], [w.read(cell, kind) for cell, kind in zip(cells, self.kinds, strict=True)])
        return w.function("define void @fs_join(ptr %job)")

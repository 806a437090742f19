"""Recurrent layers in machine code of their own: a module for each `Layer`, forward or backward through all steps.

Note [Rows]: what a row of a batch becomes depends on no other row, so each thread takes some rows through all steps and
waits for nobody. What inputs give to the gates, a matmul of all steps at once, is computed before.

Note [Tiles]: of a few rows and one vector of units, the sums of all gates are kept in registers while they run over the
state before; then the cell's functions are applied to them, and nothing but what is kept is written. Backward, what
runs over the gradients of the next step's gates are sums of several vectors of units. A block of weights, packed once
for a call, is read from the nearest cache for all of a thread's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framesmith_backends.native_ops.matmul.pack import pack
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.math import elementary as math
from framesmith_backends.render.llvm.runtime import RUNTIME, attributes
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters
from framesmith_backends.target import Processor

#: The words of a job: addresses, then numbers. `steps`, `batch` and `hidden` are sizes; weights are [gates * hidden,
#: hidden], `packed` has room for them (see `packed_elements`).
#:
#: Forward: `gates` is [steps, batch, gates * hidden], what inputs give, `bias` what is added to what a state gives;
#: `first` is the state before all steps, `out` receives all states, `cells` those of cells, `apart` elements apart (0:
#: only the last one stays), and `kept`, unless it is null, what the gates were: of an LSTM all four, of a GRU what
#: `framesmith_aten.tracing.recurrent_loops.gru_with_gates` gives.
#:
#: Backward: `out` has the gradients of all states, `carry` that of the last one beside these, and receives that of the
#: first one; `cell_carry` is the same of cells. `cells` and `gates` are what the forward pass kept, the
#: factors are those of `framesmith_aten.tracing.recurrent_loops`. `found` receives the gradients of what inputs give,
#: `found_too` of what states give, where the two differ.
WORDS = (
    "weights", "packed", "gates", "bias", "first", "first_cell", "out", "cells", "kept", "carry", "cell_carry",
    "found", "found_too", "factor0", "factor1", "factor2", "factor3", "factor4",
    "steps", "batch", "hidden", "apart", "reverse",
)  # fmt: skip
_ADDRESSES = WORDS.index("steps")
#: Heights of tiles by the bytes of a register, the tallest first.
ROWS = {64: (6, 2, 1), 32: (2, 1), 16: (2, 1)}
UNROLL = 2
#: Rows whose cells are computed together: a cell's functions wait for each other, those of several rows do not.
TOGETHER = 4

#: Writes what becomes of the sums of some rows, joined in one vector, at one vector of units.
Finish = Callable[["_Tile", Sequence[Value], range, int], None]


@dataclass(frozen=True, slots=True)
class Cell:
    """`gates` matmuls by the state make a step; what is done to their sums, forward and backward."""

    gates: int
    forward: Finish
    backward: Finish


@dataclass(frozen=True, slots=True)
class Layer:
    """A kind of CELLS, forward or backward; `vectors` of units side by side in a tile."""

    kind: str
    backward: bool
    vectors: int


def vectors_of(kind: str, backward: bool, hidden: int, target: Processor) -> int:
    """As many as there is use for: forward, several gates are as many sums already."""
    if not backward and CELLS[kind].gates > 1:
        return 1
    return next(n for n in (1, 2, 4) if n == 4 or hidden <= n * target.float_lanes)


def packed_elements(layer: Layer, hidden: int, target: Processor) -> int:
    """Room for packed weights, in elements."""
    lanes, gates = target.float_lanes, CELLS[layer.kind].gates
    blocks = -(-hidden // (lanes * layer.vectors))
    return blocks * hidden * gates * lanes * layer.vectors + lanes


def render_layer(layer: Layer, target: Processor) -> str:
    """A module with `void fs_layer(ptr job, i64 blocks, i64 batch, i32 threads)`; blocks are those of weights."""
    declarations: dict[str, None] = {}

    def writer() -> Writer:
        return Writer(vectors=target.vectors, declared=declarations)

    lanes = target.float_lanes
    parts = [pack(writer(), lanes)]
    parts += [_Tile(layer, writer(), lanes, rows).function() for rows in ROWS[target.bytes]]
    parts += [_weights(layer, writer(), lanes), _steps(layer, writer(), lanes, ROWS[target.bytes])]
    enter = (
        "define void @fs_layer(ptr %job, i64 %blocks, i64 %batch, i32 %threads) {\n"
        "  call void @fs.parallel(ptr @fs.weights, ptr %job, i64 %blocks, i32 %threads)\n"
        "  call void @fs.parallel(ptr @fs.steps, ptr %job, i64 %batch, i32 %threads)\n  ret void\n}"
    )
    return "\n\n".join([*declarations, RUNTIME, *parts, enter, attributes(target)])


def _job(w: Writer) -> dict[str, Value]:
    return {
        name: w.load(w.at(Value("%job", "ptr"), k, "i64"), "ptr" if k < _ADDRESSES else "i64", align=8)
        for k, name in enumerate(WORDS)
    }


def _weights(layer: Layer, w: Writer, lanes: int) -> str:
    """Packs blocks of weights: for each step of the sums, the vectors that a tile multiplies by one number."""
    job, width = _job(w), lanes * layer.vectors
    gates = CELLS[layer.kind].gates
    hidden, one = job["hidden"], constant(1, "i64")
    rows = w.mul(hidden, gates)
    with w.loop(Value("%begin", "i64"), Value("%end", "i64")) as block:
        unit, goal = w.mul(block, width), w.at(job["packed"], w.mul(w.mul(block, width), rows))
        if layer.backward:
            count = w.least(w.sub(hidden, unit), width)
            _call(w, "@fs.pack", w.at(job["weights"], unit), one, hidden, count, rows, goal, constant(width, "i64"))
        else:
            _pack_gates(layer, w, lanes, job, unit, goal)
    return w.function("define internal void @fs.weights(ptr %job, i64 %begin, i64 %end)")


def _pack_gates(layer: Layer, w: Writer, lanes: int, job: dict[str, Value], unit: Value, goal: Value) -> None:
    """The weights of a block of units, turned: of each gate one vector behind the other."""
    hidden, gates = job["hidden"], CELLS[layer.kind].gates
    width = constant(gates * lanes * layer.vectors, "i64")
    for vector in range(layer.vectors):
        first = w.add(unit, vector * lanes)
        with w.when(w.compare("ult", first, hidden)):
            count = w.least(w.sub(hidden, first), lanes)
            for gate in range(gates):
                source = w.at(job["weights"], w.mul(w.add(first, w.mul(hidden, gate)), hidden))
                to = w.at(goal, (gate * layer.vectors + vector) * lanes)
                _call(w, "@fs.pack", source, hidden, constant(1, "i64"), count, hidden, to, width)


def _call(w: Writer, name: str, *given: Value) -> None:
    w.line(f"call void {name}({', '.join(one.typed for one in given)})")


def _steps(layer: Layer, w: Writer, lanes: int, heights: Sequence[int]) -> str:
    """All steps of some rows: of each step all blocks of units, of each block all rows in tiles."""
    job, width = _job(w), lanes * layer.vectors
    gates = CELLS[layer.kind].gates
    hidden, steps = job["hidden"], job["steps"]
    end = Value("%end", "i64")
    area = w.mul(job["batch"], hidden)
    depth = w.mul(hidden, gates) if layer.backward else hidden
    # Backward, after the last step what is left is the gradient of the first state.
    with w.loop(ZERO, w.add(steps, 1) if layer.backward else steps) as turn:
        backwards = w.compare("eq" if layer.backward else "ne", job["reverse"], 0)
        now = w.select(backwards, w.sub(w.sub(steps, 1), turn), turn)
        last = w.select(backwards, w.add(now, 1), w.sub(now, 1))
        with w.loop(ZERO, hidden, width) as unit:
            row = w.cell(Value("%begin", "i64"))
            weights = w.at(job["packed"], w.mul(unit, w.mul(hidden, gates)))
            for height in heights:
                with w.repeat(lambda h=height: w.compare("ule", w.add(w.read(row, "i64"), h), end)):  # type: ignore[misc]
                    _call(w, f"@fs.rows.{height}", Value("%job", "ptr"), weights, depth, w.read(row, "i64"), unit,
                          turn, now, last, area)  # fmt: skip
                    w.store(w.add(w.read(row, "i64"), height), row, 0)
    return w.function("define internal void @fs.steps(ptr %job, i64 %begin, i64 %end)")


class _Tile:
    """Writes the function of one tile: `height` rows by `layer.vectors` vectors of units, at one step.

    `turn` counts the steps in the order in which they are taken, `now` and `last` are the places of this one and of the
    one before it in memory.
    """

    def __init__(self, layer: Layer, w: Writer, lanes: int, height: int) -> None:
        self.layer, self.w, self.lanes, self.height = layer, w, lanes, height
        self.cell = CELLS[layer.kind]
        self.p = parameters("ptr job", "ptr weights", "i64 depth", "i64 row", "i64 unit", "i64 turn", "i64 now",
                            "i64 last", "i64 area")  # fmt: skip
        self.job = _job(w)
        hidden = self.job["hidden"]
        #: Where this tile's first unit is, of what has one number for each unit: in one step, and in this one.
        self.corner = w.add(w.mul(self.p["row"], hidden), self.p["unit"])
        self.here = w.add(self.corner, w.mul(self.p["now"], self.p["area"]))
        self.before = w.add(self.corner, w.mul(self.p["last"], self.p["area"]))
        #: And of what has one for each gate and unit.
        self.wide = w.mul(hidden, self.cell.gates)
        first = w.mul(w.add(w.mul(self.p["now"], self.job["batch"]), self.p["row"]), self.wide)
        self.gates_here = w.add(first, self.p["unit"])
        self.is_first = w.compare("eq", self.p["turn"], 0)
        left = w.sub(hidden, self.p["unit"])
        self.masks = [w.first_lanes(w.sub(w.most(left, v * lanes), v * lanes), lanes) for v in range(layer.vectors)]

    def function(self) -> str:
        w = self.w
        sums = self._matmuls(self._starts(), *self._multiplied())
        if not self.layer.backward:
            self._finished(sums, self.cell.forward)
        else:
            over = w.compare("eq", self.p["turn"], self.job["steps"])
            with w.when(over):
                self._finished(sums, lambda t, total, rows, v: t.put("carry", total[0], t.corner, rows, v))
            with w.when(w.binary("xor", over, constant(1, "i1"))):
                self._finished(sums, self.cell.backward)
        names = ", ".join(f"{value.type} {value.text}" for value in self.p.values())
        return w.function(f"define internal void @fs.rows.{self.height}({names})")

    def _finished(self, sums: list[list[Value]], finish: Finish) -> None:
        w, first = self.w, 0
        while first < self.height:
            count = min(TOGETHER, 1 << ((self.height - first).bit_length() - 1))
            rows = range(first, first + count)
            for v in range(self.layer.vectors):
                mine = zip(*(sums[r][v :: self.layer.vectors] for r in rows), strict=True)
                finish(self, [w.join([w.read(cell, "float", self.lanes) for cell in cells]) for cells in mine], rows, v)
            first += count

    def _starts(self) -> list[list[Value]]:
        """What sums begin with: backward what the step behind left, else nothing."""
        zero = constant(0.0, "float", self.lanes)
        if not self.layer.backward:
            count = self.cell.gates * self.layer.vectors
            return [[self.w.cell(zero) for _ in range(count)] for _ in range(self.height)]
        vectors = range(self.layer.vectors)
        return [
            [self.w.cell(self.get("carry", self.corner, range(r, r + 1), v)) for v in vectors]
            for r in range(self.height)
        ]

    def _multiplied(self) -> tuple[Value, Value, Value]:
        """What weights are multiplied by: rows, how far apart these are, and how many numbers of each count."""
        w, job, p = self.w, self.job, self.p
        if not self.layer.backward:
            given = w.at(job["first"], w.mul(p["row"], job["hidden"]))
            made = w.at(job["out"], w.add(w.mul(p["row"], job["hidden"]), w.mul(p["last"], p["area"])))
            return w.select(self.is_first, given, made), job["hidden"], p["depth"]
        behind = w.mul(w.add(w.mul(p["last"], job["batch"]), p["row"]), self.wide)
        found = job["found_too" if self.layer.kind == "gru" else "found"]
        return w.at(found, behind), self.wide, w.select(self.is_first, ZERO, p["depth"])

    def _matmuls(self, sums: list[list[Value]], rows: Value, apart: Value, depth: Value) -> list[list[Value]]:
        w, lanes, count = self.w, self.lanes, len(sums[0])
        weights = w.cell(self.p["weights"])
        whole = w.binary("and", depth, -UNROLL)
        starts = [w.at(rows, w.mul(apart, r)) for r in range(self.height)]
        for first, last, unroll in ((ZERO, whole, UNROLL), (whole, depth, 1)):
            with w.loop(first, last, unroll) as k:
                now = w.read(weights, "ptr")
                for step in range(unroll):
                    parts = [w.load(w.at(now, j * lanes), "float", lanes) for j in range(count)]
                    for r in range(self.height):
                        one = w.splat(w.load(w.at(starts[r], w.add(k, step)), "float"), lanes)
                        for j in range(count):
                            w.store(w.fma(one, parts[j], w.read(sums[r][j], "float", lanes)), sums[r][j], 0)
                    now = w.at(now, count * lanes)
                w.store(now, weights, 0)
        return sums

    # What `Finish` asks for: vectors of some rows, joined, and of vector `v` of units, of a word's memory.

    def _places(self, name: str, first: Value, rows: range, v: int, gate: int | None = None) -> list[Value]:
        w, hidden = self.w, self.job["hidden"]
        step = hidden if gate is None else self.wide
        if gate:
            first = w.add(first, w.mul(hidden, gate))
        if v:
            first = w.add(first, v * self.lanes)
        return [w.at(self.job[name], w.add(first, w.mul(step, r))) for r in rows]

    def _loaded(self, places: Sequence[Value], v: int) -> Value:
        return self.w.join([self.w.masked_load(place, self.masks[v]) for place in places])

    def get(self, name: str, first: Value, rows: range, v: int, gate: int | None = None) -> Value:
        return self._loaded(self._places(name, first, rows, v, gate), v)

    def put(self, name: str, value: Value, first: Value, rows: range, v: int, gate: int | None = None) -> None:
        for at, place in enumerate(self._places(name, first, rows, v, gate)):
            one = self.w.pick(value, range(at * self.lanes, (at + 1) * self.lanes))
            self.w.masked_store(one, place, self.masks[v])

    def keep(self, values: Sequence[Value], rows: range, v: int) -> None:
        """Write these, one behind the other for each row, if they are to be kept."""
        w, hidden = self.w, self.job["hidden"]
        with w.when(w.compare("ne", w.emit(f"ptrtoint {self.job['kept'].typed} to i64", "i64"), 0)):
            first = w.add(w.mul(self.p["now"], self.job["batch"]), self.p["row"])
            for at, value in enumerate(values):
                for k, r in enumerate(rows):
                    row = w.add(w.mul(w.add(first, r), len(values)), at)
                    place = w.add(w.add(w.mul(row, hidden), self.p["unit"]), v * self.lanes)
                    one = w.pick(value, range(k * self.lanes, (k + 1) * self.lanes))
                    w.masked_store(one, w.at(self.job["kept"], place), self.masks[v])

    def gate(self, rows: range, v: int, gate: int) -> Value:
        """What inputs give to a gate, or, backward, what the gate was."""
        return self.get("gates", self.gates_here, rows, v, gate)

    def by_state(self, total: Value, v: int, gate: int) -> Value:
        """What the state gives to a gate."""
        w = self.w
        at = w.add(w.add(self.p["unit"], v * self.lanes), w.mul(self.job["hidden"], gate))
        bias = w.masked_load(w.at(self.job["bias"], at), self.masks[v])
        return w.add(total, w.join([bias] * (total.lanes // self.lanes)))

    def earlier(self, is_first: Value, first: str, kept: str, place: Value, rows: range, v: int) -> Value:
        """What was before a step: of the first one in memory of its own."""
        pairs = zip(self._places(first, self.corner, rows, v), self._places(kept, place, rows, v), strict=True)
        return self._loaded([self.w.select(is_first, given, made) for given, made in pairs], v)


def _lstm(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    inner, forget, new, outer = (w.add(t.by_state(one, v, k), t.gate(rows, v, k)) for k, one in enumerate(sums))
    inner, forget, outer = (math.sigmoid(w, one) for one in (inner, forget, outer))
    new = math.tanh(w, new)
    apart = w.mul(t.job["apart"], t.p["now"])
    earlier = w.add(t.corner, w.mul(t.job["apart"], t.p["last"]))
    before = t.earlier(t.is_first, "first_cell", "cells", earlier, rows, v)
    cell = w.fma(forget, before, w.mul(inner, new))
    t.put("cells", cell, w.add(t.corner, apart), rows, v)
    t.put("out", w.mul(outer, math.tanh(w, cell)), t.here, rows, v)
    t.keep((inner, forget, new, outer), rows, v)


def _lstm_back(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    state = w.add(sums[0], t.get("out", t.here, rows, v))
    inner, forget, new, outer = (t.gate(rows, v, gate) for gate in range(4))
    shown = math.tanh(w, t.get("cells", t.here, rows, v))
    # The step before this one in the forward pass is the one behind it here.
    is_first = w.compare("eq", t.p["turn"], w.sub(t.job["steps"], 1))
    earlier = w.sub(w.add(t.here, t.here), t.before)
    before = t.earlier(is_first, "first_cell", "cells", earlier, rows, v)
    one = w.number(1.0, state)
    cell = w.fma(w.mul(state, outer), w.sub(one, w.mul(shown, shown)), t.get("cell_carry", t.corner, rows, v))
    grads = (
        w.mul(w.mul(cell, new), w.mul(inner, w.sub(one, inner))),
        w.mul(w.mul(cell, before), w.mul(forget, w.sub(one, forget))),
        w.mul(w.mul(cell, inner), w.sub(one, w.mul(new, new))),
        w.mul(w.mul(state, shown), w.mul(outer, w.sub(one, outer))),
    )
    for gate, grad in enumerate(grads):
        t.put("found", grad, t.gates_here, rows, v, gate)
    t.put("cell_carry", w.mul(cell, forget), t.corner, rows, v)
    t.put("carry", w.number(0.0, sums[0]), t.corner, rows, v)


def _gru(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    reset, update = (math.sigmoid(w, w.add(t.by_state(sums[k], v, k), t.gate(rows, v, k))) for k in (0, 1))
    own = t.by_state(sums[2], v, 2)
    new = math.tanh(w, w.fma(reset, own, t.gate(rows, v, 2)))
    before = t.earlier(t.is_first, "first", "out", t.before, rows, v)
    t.put("out", w.fma(w.sub(before, new), update, new), t.here, rows, v)
    t.keep((reset, update, new, own), rows, v)


def _gru_back(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    state = w.add(sums[0], t.get("out", t.here, rows, v))
    update, new, gate, reset, by_reset = (t.get(f"factor{k}", t.here, rows, v) for k in range(5))
    of_update, of_new = w.mul(state, gate), w.mul(state, new)
    of_reset = w.mul(of_new, by_reset)
    for at, grad in enumerate((of_reset, of_update, of_new)):
        t.put("found", grad, t.gates_here, rows, v, at)
    for at, grad in enumerate((of_reset, of_update, w.mul(of_new, reset))):
        t.put("found_too", grad, t.gates_here, rows, v, at)
    t.put("carry", w.mul(state, update), t.corner, rows, v)


def _plain(activation: Callable[[Writer, Value], Value]) -> Finish:
    def finish(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
        t.put("out", activation(t.w, t.w.add(t.by_state(sums[0], v, 0), t.gate(rows, v, 0))), t.here, rows, v)

    return finish


def _plain_back(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    grad = w.mul(w.add(sums[0], t.get("out", t.here, rows, v)), t.get("factor0", t.here, rows, v))
    t.put("found", grad, t.gates_here, rows, v, 0)
    t.put("carry", w.number(0.0, sums[0]), t.corner, rows, v)


def _relu(w: Writer, x: Value) -> Value:
    """The larger of x and 0; NaN stays."""
    return w.select(w.compare("ole", x, 0.0), constant(0.0, "float", x.lanes), x)


CELLS: dict[str, Cell] = {
    "lstm": Cell(4, _lstm, _lstm_back),
    "gru": Cell(3, _gru, _gru_back),
    "rnn_tanh": Cell(1, _plain(math.tanh), _plain_back),
    "rnn_relu": Cell(1, _plain(_relu), _plain_back),
}

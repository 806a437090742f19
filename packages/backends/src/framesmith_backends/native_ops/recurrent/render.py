"""Recurrent layers as LLVM IR: a module for each `Layer`, forward or backward through all steps.

Note [Rows]: the rows of a batch are independent, so each thread takes some rows through all steps and waits for nobody.
The matmul of the inputs of all steps is computed before.

Note [Tiles]: the sums of all gates, of a few rows and one vector of units, are in registers while they run over the
state before; then the cell's functions are applied to them. Backward, sums of several vectors of units run over the
gradients of the next step's gates. A block of weights, packed once for a call, is read from the nearest cache for all
rows of a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from framesmith_backends.native_ops.job import BEGIN, END, POINTER, Job, OperatorModule, entry, threaded
from framesmith_backends.native_ops.matmul.pack import pack
from framesmith_backends.native_ops.matmul.rectangle import multiply_add
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.math import elementary as math
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters
from framesmith_backends.target import Processor

#: Weights are [gates * hidden, hidden], `packed` has room for them (see `packed_elements`).
#:
#: Forward: `gates` is [steps, batch, gates * hidden], the matmul of the inputs; `bias` is added to that of the state;
#: `first` is the state before all steps, `out` receives all states, `cells` those of cells, `stride` elements from step
#: to step (0: only the last one stays), and `saved`, unless it is null, the gates: of an LSTM all four, of a GRU those
#: of `framesmith_aten.tracing.recurrent_loops.gru_with_gates`.
#:
#: Backward: `out` has the gradients of all states, `carry` that of the last one beside these, and receives that of the
#: first one; `cell_carry` is the same of cells. `cells` and `gates` are those that the forward pass saved, the factors
#: those of `framesmith_aten.tracing.recurrent_loops`. `grads` receives the gradients of the inputs' matmul, and
#: `state_grads` those of the state's where the two differ.
JOB = Job(
    *(f"ptr {name}" for name in (
        "weights", "packed", "gates", "bias", "first", "first_cell", "out", "cells", "saved", "carry", "cell_carry",
        "grads", "state_grads", "factor0", "factor1", "factor2", "factor3", "factor4",
    )),
    *(f"i64 {name}" for name in ("steps", "batch", "hidden", "stride", "reverse")),
)  # fmt: skip
#: Heights of tiles by the bytes of a register, the tallest first.
ROWS = {64: (6, 2, 1), 32: (2, 1), 16: (2, 1)}
UNROLL = 2
#: Rows whose cells are computed together: the functions of one cell depend on each other, those of rows do not.
TOGETHER = 4

#: Writes the epilogue of the sums of some rows, joined in one vector, at one vector of units.
Finish = Callable[["_Tile", Sequence[Value], range, int], None]


@dataclass(frozen=True, slots=True)
class Cell:
    """A step is `gates` matmuls by the state, and the epilogue of their sums, forward and backward."""

    gates: int
    forward: Finish
    backward: Finish


class Layer(NamedTuple):
    """A kind of CELLS, forward or backward; `vectors` of units side by side in a tile."""

    kind: str
    backward: bool
    vectors: int

    @property
    def gates(self) -> int:
        return CELLS[self.kind].gates


def vectors_of(kind: str, backward: bool, hidden: int, target: Processor) -> int:
    """The vectors of units in a tile; one for several gates, which are as many sums."""
    if not backward and CELLS[kind].gates > 1:
        return 1
    return next(n for n in (1, 2, 4) if n == 4 or hidden <= n * target.float_lanes)


def packed_elements(layer: Layer, hidden: int, target: Processor) -> int:
    """Room for packed weights, in elements."""
    width = target.float_lanes * layer.vectors
    return -(-hidden // width) * width * hidden * layer.gates + target.float_lanes


def render_layer(layer: Layer, target: Processor) -> str:
    """A module with `void fs_layer(ptr job, i64 blocks, i64 batch, i32 threads)`; blocks are those of weights."""
    lanes, module = target.float_lanes, OperatorModule(target)
    writer = module.writer
    parts = [pack(writer(), lanes)]
    parts += [_Tile(layer, writer(), lanes, rows).function() for rows in ROWS[target.bytes]]
    parts += [_weights(layer, writer(), lanes), _steps(layer, writer(), lanes, ROWS[target.bytes])]
    enter = entry("fs_layer", {"fs.weights": "blocks", "fs.steps": "batch"})
    return module.text(*parts, enter)


def _weights(layer: Layer, w: Writer, lanes: int) -> str:
    """Pack blocks of weights: for each step of the sums, the vectors that a tile multiplies by one number."""
    job, width = JOB.load(w), lanes * layer.vectors
    hidden, one = job["hidden"], constant(1, "i64")
    rows = w.mul(hidden, layer.gates)
    with w.loop(BEGIN, END) as block:
        unit, goal = w.mul(block, width), w.at(job["packed"], w.mul(w.mul(block, width), rows))
        if layer.backward:
            count = w.least(w.sub(hidden, unit), width)
            w.call("@fs.pack", w.at(job["weights"], unit), one, hidden, count, rows, goal, constant(width, "i64"))
        else:
            _pack_gates(layer, w, lanes, job, unit, goal)
    return threaded(w, "fs.weights")


def _pack_gates(layer: Layer, w: Writer, lanes: int, job: dict[str, Value], unit: Value, goal: Value) -> None:
    """The weights of a block of units, transposed, one vector of each gate after the other."""
    hidden, width = job["hidden"], constant(layer.gates * lanes * layer.vectors, "i64")
    for vector in range(layer.vectors):
        first = w.add(unit, vector * lanes)
        with w.when(w.compare("ult", first, hidden)):
            count = w.least(w.sub(hidden, first), lanes)
            for gate in range(layer.gates):
                source = w.at(job["weights"], w.mul(w.add(first, w.mul(hidden, gate)), hidden))
                to = w.at(goal, (gate * layer.vectors + vector) * lanes)
                w.call("@fs.pack", source, hidden, constant(1, "i64"), count, hidden, to, width)


def _steps(layer: Layer, w: Writer, lanes: int, heights: Sequence[int]) -> str:
    """All steps of some rows: of each step all blocks of units, of each block all rows in tiles."""
    job, width = JOB.load(w), lanes * layer.vectors
    hidden, steps, gates = job["hidden"], job["steps"], layer.gates
    area = w.mul(job["batch"], hidden)
    depth = w.mul(hidden, gates) if layer.backward else hidden
    # Backward, one more turn computes the gradient of the first state.
    with w.loop(ZERO, w.add(steps, 1) if layer.backward else steps) as turn:
        backwards = w.compare("eq" if layer.backward else "ne", job["reverse"], 0)
        now = w.select(backwards, w.sub(w.sub(steps, 1), turn), turn)
        last = w.select(backwards, w.add(now, 1), w.sub(now, 1))
        with w.loop(ZERO, hidden, width) as unit:
            row = w.cell(BEGIN)
            weights = w.at(job["packed"], w.mul(unit, w.mul(hidden, gates)))
            for height in heights:
                with w.repeat(lambda h=height: w.compare("ule", w.add(w.read(row, "i64"), h), END)):  # type: ignore[misc]
                    w.call(f"@fs.rows.{height}", POINTER, weights, depth, w.read(row, "i64"), unit,
                          turn, now, last, area)  # fmt: skip
                    w.store(w.add(w.read(row, "i64"), height), row, 0)
    return threaded(w, "fs.steps")


class _Tile:
    """Writes the function of one tile: `height` rows by `layer.vectors` vectors of units, at one step.

    `turn` counts the steps in the order in which they are taken, `now` and `last` are the indices of this one and of
    the one before it in memory.
    """

    def __init__(self, layer: Layer, w: Writer, lanes: int, height: int) -> None:
        self.layer, self.w, self.lanes, self.height = layer, w, lanes, height
        self.cell = CELLS[layer.kind]
        self.p = parameters("ptr job", "ptr weights", "i64 depth", "i64 row", "i64 unit", "i64 turn", "i64 now",
                            "i64 last", "i64 area")  # fmt: skip
        self.job = JOB.load(w)
        hidden = self.job["hidden"]
        #: The offset of this tile's first unit in arrays with one number for each unit: in one step, and in this one.
        self.corner = w.add(w.mul(self.p["row"], hidden), self.p["unit"])
        self.here = w.add(self.corner, w.mul(self.p["now"], self.p["area"]))
        self.before = w.add(self.corner, w.mul(self.p["last"], self.p["area"]))
        #: And in arrays with one for each gate and unit.
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
            with w.when(w.negated(over)):
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
        """The initial sums: backward the carry of the step before, else zeros."""
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
        """The rows that weights are multiplied by: their address, stride and length."""
        w, job, p = self.w, self.job, self.p
        if not self.layer.backward:
            given = w.at(job["first"], w.mul(p["row"], job["hidden"]))
            made = w.at(job["out"], w.add(w.mul(p["row"], job["hidden"]), w.mul(p["last"], p["area"])))
            return w.select(self.is_first, given, made), job["hidden"], p["depth"]
        behind = w.mul(w.add(w.mul(p["last"], job["batch"]), p["row"]), self.wide)
        grads = job["state_grads" if self.layer.kind == "gru" else "grads"]
        return w.at(grads, behind), self.wide, w.select(self.is_first, ZERO, p["depth"])

    def _matmuls(self, sums: list[list[Value]], rows: Value, stride: Value, depth: Value) -> list[list[Value]]:
        w, lanes, count = self.w, self.lanes, len(sums[0])
        weights = w.cell(self.p["weights"])
        whole = w.binary("and", depth, -UNROLL)
        starts = [w.at(rows, w.mul(stride, r)) for r in range(self.height)]
        for first, last, unroll in ((ZERO, whole, UNROLL), (whole, depth, 1)):
            with w.loop(first, last, unroll) as k:
                now = w.read(weights, "ptr")
                for step in range(unroll):
                    multiply_add(w, lanes, sums, (w.at(start, w.add(k, step)) for start in starts), now)
                    now = w.at(now, count * lanes)
                w.store(now, weights, 0)
        return sums

    # For `Finish`: vector `v` of units of some rows, joined, in the array of a word.

    def _addresses(self, name: str, first: Value, rows: range, v: int, gate: int | None = None) -> list[Value]:
        w, hidden = self.w, self.job["hidden"]
        step = hidden if gate is None else self.wide
        if gate:
            first = w.add(first, w.mul(hidden, gate))
        if v:
            first = w.add(first, v * self.lanes)
        return [w.at(self.job[name], w.add(first, w.mul(step, r))) for r in rows]

    def _loaded(self, addresses: Sequence[Value], v: int) -> Value:
        return self.w.join([self.w.masked_load(address, self.masks[v]) for address in addresses])

    def get(self, name: str, first: Value, rows: range, v: int, gate: int | None = None) -> Value:
        return self._loaded(self._addresses(name, first, rows, v, gate), v)

    def put(self, name: str, value: Value, first: Value, rows: range, v: int, gate: int | None = None) -> None:
        for at, address in enumerate(self._addresses(name, first, rows, v, gate)):
            one = self.w.pick(value, range(at * self.lanes, (at + 1) * self.lanes))
            self.w.masked_store(one, address, self.masks[v])

    def save(self, values: Sequence[Value], rows: range, v: int) -> None:
        """Write these to `saved`, if there is one, contiguous for each row."""
        w, hidden = self.w, self.job["hidden"]
        with w.when(w.is_set(self.job["saved"])):
            first = w.add(w.mul(self.p["now"], self.job["batch"]), self.p["row"])
            for at, value in enumerate(values):
                for k, r in enumerate(rows):
                    row = w.add(w.mul(w.add(first, r), len(values)), at)
                    offset = w.add(w.add(w.mul(row, hidden), self.p["unit"]), v * self.lanes)
                    one = w.pick(value, range(k * self.lanes, (k + 1) * self.lanes))
                    w.masked_store(one, w.at(self.job["saved"], offset), self.masks[v])

    def gate(self, rows: range, v: int, gate: int) -> Value:
        """The inputs' part of a gate, or, backward, the gate."""
        return self.get("gates", self.gates_here, rows, v, gate)

    def by_state(self, total: Value, v: int, gate: int) -> Value:
        """The state's part of a gate."""
        w = self.w
        at = w.add(w.add(self.p["unit"], v * self.lanes), w.mul(self.job["hidden"], gate))
        bias = w.masked_load(w.at(self.job["bias"], at), self.masks[v])
        return w.add(total, w.join([bias] * (total.lanes // self.lanes)))

    def earlier(self, is_first: Value, first: str, others: str, at: Value, rows: range, v: int) -> Value:
        """The array `others` at the step before; before the first step the array `first`."""
        pairs = zip(self._addresses(first, self.corner, rows, v), self._addresses(others, at, rows, v), strict=True)
        return self._loaded([self.w.select(is_first, given, made) for given, made in pairs], v)


def _lstm(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    inner, forget, new, outer = (w.add(t.by_state(one, v, k), t.gate(rows, v, k)) for k, one in enumerate(sums))
    inner, forget, outer = (math.sigmoid(w, one) for one in (inner, forget, outer))
    new = math.tanh(w, new)
    step = w.mul(t.job["stride"], t.p["now"])
    earlier = w.add(t.corner, w.mul(t.job["stride"], t.p["last"]))
    before = t.earlier(t.is_first, "first_cell", "cells", earlier, rows, v)
    cell = w.fma(forget, before, w.mul(inner, new))
    t.put("cells", cell, w.add(t.corner, step), rows, v)
    t.put("out", w.mul(outer, math.tanh(w, cell)), t.here, rows, v)
    t.save((inner, forget, new, outer), rows, v)


def _lstm_back(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    state = w.add(sums[0], t.get("out", t.here, rows, v))
    inner, forget, new, outer = (t.gate(rows, v, gate) for gate in range(4))
    shown = math.tanh(w, t.get("cells", t.here, rows, v))
    # The step before this one in the forward pass is the next one here.
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
        t.put("grads", grad, t.gates_here, rows, v, gate)
    t.put("cell_carry", w.mul(cell, forget), t.corner, rows, v)
    t.put("carry", w.number(0.0, sums[0]), t.corner, rows, v)


def _gru(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    reset, update = (math.sigmoid(w, w.add(t.by_state(sums[k], v, k), t.gate(rows, v, k))) for k in (0, 1))
    by_state = t.by_state(sums[2], v, 2)
    new = math.tanh(w, w.fma(reset, by_state, t.gate(rows, v, 2)))
    before = t.earlier(t.is_first, "first", "out", t.before, rows, v)
    t.put("out", w.fma(w.sub(before, new), update, new), t.here, rows, v)
    t.save((reset, update, new, by_state), rows, v)


def _gru_back(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    state = w.add(sums[0], t.get("out", t.here, rows, v))
    update, new, gate, reset, by_reset = (t.get(f"factor{k}", t.here, rows, v) for k in range(5))
    of_update, of_new = w.mul(state, gate), w.mul(state, new)
    of_reset = w.mul(of_new, by_reset)
    for at, grad in enumerate((of_reset, of_update, of_new)):
        t.put("grads", grad, t.gates_here, rows, v, at)
    for at, grad in enumerate((of_reset, of_update, w.mul(of_new, reset))):
        t.put("state_grads", grad, t.gates_here, rows, v, at)
    t.put("carry", w.mul(state, update), t.corner, rows, v)


def _plain(activation: Callable[[Writer, Value], Value]) -> Finish:
    def finish(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
        t.put("out", activation(t.w, t.w.add(t.by_state(sums[0], v, 0), t.gate(rows, v, 0))), t.here, rows, v)

    return finish


def _plain_back(t: _Tile, sums: Sequence[Value], rows: range, v: int) -> None:
    w = t.w
    grad = w.mul(w.add(sums[0], t.get("out", t.here, rows, v)), t.get("factor0", t.here, rows, v))
    t.put("grads", grad, t.gates_here, rows, v, 0)
    t.put("carry", w.number(0.0, sums[0]), t.corner, rows, v)


CELLS: dict[str, Cell] = {
    "lstm": Cell(4, _lstm, _lstm_back),
    "gru": Cell(3, _gru, _gru_back),
    "rnn_tanh": Cell(1, _plain(math.tanh), _plain_back),
    # The larger of x and 0, or NaN.
    "rnn_relu": Cell(
        1, _plain(lambda w, x: w.select(w.compare("ole", x, 0.0), constant(0.0, "float", x.lanes), x)), _plain_back
    ),
}

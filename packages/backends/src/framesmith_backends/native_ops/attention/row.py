"""One query at a time: see Note [Few queries]."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.native_ops.attention.block import finite, larger, logarithm
from framesmith_backends.native_ops.attention.shape import KEYS_OF_ROW, LOWEST, Shape
from framesmith_backends.native_ops.job import lane_numbers
from framesmith_backends.native_ops.matmul.pack import transposed
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.math import elementary as functions
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters, signature

ROW = (
    "ptr query", "ptr key", "ptr value", "ptr mask", "i64 limit", "i64 depth", "i64 key_row", "i64 value_row",
    "i64 mask_column", "float scale", "ptr memory", "ptr out", "ptr lse",
)  # fmt: skip
#: Vectors of a value that are summed up at once.
WIDE = 4


def row(w: Writer, shape: Shape) -> str:
    """One query's result over the first `limit` keys: see Note [Few queries]."""
    p, lanes = parameters(*ROW), shape.lanes
    scores, sums = (w.at(p["memory"], shape.offsets[name]) for name in ("row", "sums"))
    greatest, total = w.cell(constant(LOWEST, "float")), w.cell(constant(0.0, "float"))
    with w.loop(ZERO, p["limit"], KEYS_OF_ROW) as start:
        keys = w.least(w.sub(p["limit"], start), KEYS_OF_ROW)
        largest = w.cell(constant(LOWEST, "float", lanes))
        with w.loop(ZERO, keys, lanes) as k:
            found = _row_scores(w, p, lanes, w.add(start, k), w.first_lanes(w.sub(keys, k), lanes))
            w.store(found, w.at(scores, k))
            w.store(larger(w, w.read(largest, "float", lanes), found), largest, 0)
        before = w.read(greatest, "float")
        now = larger(w, before, _joined(w, w.read(largest, "float", lanes), larger))
        base = finite(w, now)
        powers = w.cell(constant(0.0, "float", lanes))
        with w.loop(ZERO, keys, lanes) as k:
            power = functions.weight(w, w.sub(w.load(w.at(scores, k), "float", lanes), w.splat(base, lanes)))
            w.store(power, w.at(scores, k))
            w.store(w.add(w.read(powers, "float", lanes), power), powers, 0)
        factor = functions.weight(w, w.splat(w.sub(before, base), lanes))
        one = w.emit(f"extractelement {factor.typed}, i64 0", "float")
        w.store(w.fma(w.read(total, "float"), one, _joined(w, w.read(powers, "float", lanes), Writer.add)), total, 0)
        w.store(now, greatest, 0)
        values = w.at(p["value"], w.mul(start, p["value_row"]))
        _row_values(w, p, lanes, (scores, keys, values, sums, factor, w.compare("ne", start, 0)))
    whole = w.read(total, "float")
    whole = w.select(w.compare("oeq", whole, 0.0), w.number(1.0, whole), whole)
    w.store(logarithm(w, w.read(greatest, "float"), whole), p["lse"])
    inverse = w.splat(w.div(w.number(1.0, whole), whole), lanes)
    with w.loop(ZERO, p["depth"], lanes) as d:
        inside = w.first_lanes(w.sub(p["depth"], d), lanes)
        w.masked_store(w.mul(w.load(w.at(sums, d), "float", lanes), inverse), w.at(p["out"], d), inside)
    return w.function(f"define internal void @fs.row({signature(ROW)})")


def _joined(w: Writer, vector: Value, join: Callable[[Writer, Value, Value], Value]) -> Value:
    """Reduce all lanes to one."""
    while vector.lanes > 2:
        half = vector.lanes // 2
        vector = join(w, w.pick(vector, range(half)), w.pick(vector, range(half, 2 * half)))
    first, second = (w.emit(f"extractelement {vector.typed}, i64 {k}", vector.kind) for k in range(2))
    return join(w, first, second)


def _row_scores(w: Writer, p: dict[str, Value], lanes: int, first: Value, there: Value) -> Value:
    """Scores of the query with as many keys as lanes, -inf beyond the last key."""
    last = w.sub(p["limit"], 1)
    keys = [w.at(p["key"], w.mul(w.least(w.add(first, k), last), p["key_row"])) for k in range(lanes)]
    sums = [w.cell(constant(0.0, "float", lanes)) for _ in range(lanes)]
    whole = w.binary("and", p["depth"], -lanes)
    with w.loop(ZERO, whole, lanes) as d:
        query = w.load(w.at(p["query"], d), "float", lanes)
        for key, cell in zip(keys, sums, strict=True):
            w.store(w.fma(query, w.load(w.at(key, d), "float", lanes), w.read(cell, "float", lanes)), cell, 0)
    with w.when(w.compare("ult", whole, p["depth"])):
        rest = w.first_lanes(w.sub(p["depth"], whole), lanes)
        query = w.masked_load(w.at(p["query"], whole), rest)
        for key, cell in zip(keys, sums, strict=True):
            w.store(w.fma(query, w.masked_load(w.at(key, whole), rest), w.read(cell, "float", lanes)), cell, 0)
    parts = transposed(w, [w.read(cell, "float", lanes) for cell in sums])
    while len(parts) > 1:
        parts = [w.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    mask = w.cell(constant(0.0, "float", lanes))
    with w.when(w.negated(w.is_null(p["mask"]))):
        start = w.at(p["mask"], w.mul(first, p["mask_column"]))
        beside = w.compare("eq", p["mask_column"], 1)
        with w.when(beside):
            w.store(w.masked_load(start, there), mask, 0)
        with w.when(w.negated(beside)):
            offsets = w.mul(lane_numbers(lanes), w.splat(p["mask_column"], lanes))
            spots = w.emit(f"getelementptr float, {start.typed}, {offsets.typed}", "ptr", lanes)
            w.store(w.masked_load(spots, there), mask, 0)
    found = w.fma(parts[0], w.splat(p["scale"], lanes), w.read(mask, "float", lanes))
    return w.select(there, found, w.number(LOWEST, found))


def _row_values(w: Writer, p: dict[str, Value], lanes: int, given: tuple[Value, ...]) -> None:
    """P·V for one query, added to `factor` times the sums of earlier blocks."""
    scores, keys, values, sums, factor, later = given
    wide = w.mul(w.binary("udiv", p["depth"], WIDE * lanes), WIDE * lanes)
    for first, last, vectors in ((ZERO, wide, WIDE), (wide, p["depth"], 1)):
        with w.loop(first, last, vectors * lanes) as d:
            inside = w.first_lanes(w.sub(p["depth"], d), lanes)
            cells = [w.cell(constant(0.0, "float", lanes)) for _ in range(vectors)]
            with w.loop(ZERO, keys) as k:
                one = w.splat(w.load(w.at(scores, k), "float"), lanes)
                here = w.at(w.at(values, w.mul(k, p["value_row"])), d)
                for v, cell in enumerate(cells):
                    there = w.at(here, v * lanes)
                    value = w.load(there, "float", lanes) if vectors > 1 else w.masked_load(there, inside)
                    w.store(w.fma(one, value, w.read(cell, "float", lanes)), cell, 0)
            for v, cell in enumerate(cells):
                place = w.at(w.at(sums, d), v * lanes)
                old = w.masked_load(place, w.splat(later, lanes))
                w.store(w.fma(old, factor, w.read(cell, "float", lanes)), place)

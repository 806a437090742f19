"""A block of queries: over all keys it sees, and its results. See Note [Across queries].

Register tiles multiply broadcast elements of keys or values by vectors of queries. Scores become probabilities: powers
of e, with their sums, and the largest score so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.native_ops.attention.shape import KEYS, LOWEST, Shape
from framesmith_backends.native_ops.job import lane_numbers
from framesmith_backends.native_ops.matmul.pack import transposed
from framesmith_backends.native_ops.matmul.rectangle import multiply_add
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.math import elementary as functions
from framesmith_backends.render.llvm.ops import emit_cast, to_memory
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters, signature

#: Keys of one iteration.
UNROLL = 2


def _scores_sums(w: Writer, p: dict[str, Value], lanes: int, vectors: int, rows: int) -> list[list[Value]]:
    """Of each key and vector of queries the sum over the elements of a head."""
    sums = [[w.cell(constant(0.0, "float", lanes)) for _ in range(vectors)] for _ in range(rows)]
    keys, here = [p["key"]], w.cell(p["queries"])
    for _ in range(rows - 1):
        keys.append(w.at(keys[-1], p["key_row"]))
    with w.loop(ZERO, p["depth"]) as d:
        now = w.read(here, "ptr")
        multiply_add(w, lanes, sums, [w.at(key, d) for key in keys], now)
        w.store(w.at(now, vectors * lanes), here, 0)
    return [[w.read(cell, "float", lanes) for cell in row] for row in sums]


def _values_sums(w: Writer, p: dict[str, Value], lanes: int, vectors: int, rows: int) -> list[list[Value]]:
    """Of each element of the values and vector of queries the sum over keys."""
    sums = [[w.cell(constant(0.0, "float", lanes)) for _ in range(vectors)] for _ in range(rows)]
    value, here = w.cell(p["value"]), w.cell(p["scores"])
    whole = w.binary("and", p["keys"], -UNROLL)
    for first, last, unroll in ((ZERO, whole, UNROLL), (whole, p["keys"], 1)):
        with w.loop(first, last, unroll):
            head, now = w.read(value, "ptr"), w.read(here, "ptr")
            for _ in range(unroll):
                multiply_add(w, lanes, sums, [w.at(head, r) for r in range(rows)], now)
                head, now = w.at(head, p["value_row"]), w.at(now, vectors * lanes)
            w.store(head, value, 0)
            w.store(now, here, 0)
    return [[w.read(cell, "float", lanes) for cell in row] for row in sums]


_SCORES = ("ptr queries", "ptr key", "i64 key_row", "i64 depth", "ptr scores", "float scale", "i1 masked")


def scores_tile(w: Writer, shape: Shape, vectors: int, rows: int) -> str:
    """Scores of so many keys, scaled, and added to the mask that is in their place if there is one."""
    p, lanes = parameters(*_SCORES), shape.lanes
    sums = _scores_sums(w, p, lanes, vectors, rows)
    scale, masked = w.splat(p["scale"], lanes), w.splat(p["masked"], lanes)
    for r, row in enumerate(sums):
        for v, value in enumerate(row):
            place = w.at(p["scores"], (r * vectors + v) * lanes)
            w.store(w.fma(value, scale, w.masked_load(place, masked)), place)
    return w.function(f"define internal void @fs.scores.{vectors}.{rows}({signature(_SCORES)})")


_VALUES = ("ptr scores", "ptr value", "i64 value_row", "i64 keys", "ptr sums", "ptr factor", "i1 later")


def values_tile(w: Writer, shape: Shape, vectors: int, rows: int) -> str:
    """P·V for so many elements of the values, added to `factor` times the sums of earlier blocks."""
    p, lanes = parameters(*_VALUES), shape.lanes
    sums = _values_sums(w, p, lanes, vectors, rows)
    later = w.splat(p["later"], lanes)
    factors = [w.load(w.at(p["factor"], v * lanes), "float", lanes) for v in range(vectors)]
    for r, row in enumerate(sums):
        for v, value in enumerate(row):
            place = w.at(p["sums"], (r * vectors + v) * lanes)
            w.store(w.fma(w.masked_load(place, later), factors[v], value), place)
    return w.function(f"define internal void @fs.values.{vectors}.{rows}({signature(_VALUES)})")


def larger(w: Writer, a: Value, b: Value) -> Value:
    """The larger; where one is NaN, either: a row with a NaN is NaN by its sum."""
    return w.select(w.compare("ogt", a, b), a, b)


def finite(w: Writer, greatest: Value) -> Value:
    """The score that is subtracted from others: zero where all are -inf, so that their powers are zero."""
    return w.select(w.compare("oeq", greatest, LOWEST), w.number(0.0, greatest), greatest)


def logarithm(w: Writer, greatest: Value, total: Value) -> Value:
    """The logarithm of a sum of powers whose largest exponent is given; infinite where that is."""
    found = w.add(finite(w, greatest), functions.log(w, total))
    return w.select(w.compare("oeq", greatest, math.inf), greatest, found)


_SOFTMAX = ("ptr scores", "i64 keys", "ptr greatest", "ptr total", "ptr factor", "i64 ahead")


def softmax(w: Writer, shape: Shape, vectors: int) -> str:
    """Powers of e in place of a block's scores, and the state that follows.

    The query of lane k sees the keys up to `ahead` + k of this block.
    """
    p, lanes = parameters(*_SOFTMAX), shape.lanes
    width = vectors * lanes
    beyond = w.add(p["ahead"], 1)
    beyond = w.select(w.compare("slt", beyond, 0), ZERO, beyond)
    steps = [lane_numbers(lanes, first=v * lanes) for v in range(vectors)]
    with w.loop(beyond, p["keys"]) as k:
        hidden = w.splat(w.sub(k, p["ahead"]), lanes)
        row = w.at(p["scores"], w.mul(k, width))
        for v in range(vectors):
            place = w.at(row, v * lanes)
            one = w.load(place, "float", lanes)
            w.store(w.select(w.compare("slt", steps[v], hidden), w.number(LOWEST, one), one), place)
    names = [[w.at(p[name], v * lanes) for v in range(vectors)] for name in ("greatest", "total", "factor")]
    before = [w.load(place, "float", lanes) for place in names[0]]
    cells = [w.cell(one) for one in before]
    with w.loop(ZERO, p["keys"]) as k:
        row = w.at(p["scores"], w.mul(k, width))
        for v, cell in enumerate(cells):
            one = w.load(w.at(row, v * lanes), "float", lanes)
            w.store(larger(w, w.read(cell, "float", lanes), one), cell, 0)
    greatest = [w.read(cell, "float", lanes) for cell in cells]
    base = [finite(w, one) for one in greatest]
    totals = [w.cell(constant(0.0, "float", lanes)) for _ in range(vectors)]
    with w.loop(ZERO, p["keys"]) as k:
        row = w.at(p["scores"], w.mul(k, width))
        for v, cell in enumerate(totals):
            place = w.at(row, v * lanes)
            power = functions.weight(w, w.sub(w.load(place, "float", lanes), base[v]))
            w.store(power, place)
            w.store(w.add(w.read(cell, "float", lanes), power), cell, 0)
    for v in range(vectors):
        factor = functions.weight(w, w.sub(before[v], base[v]))
        total = w.fma(w.load(names[1][v], "float", lanes), factor, w.read(totals[v], "float", lanes))
        for value, place in zip((greatest[v], total, factor), (names[0][v], names[1][v], names[2][v]), strict=True):
            w.store(value, place)
    return w.function(f"define internal void @fs.softmax.{vectors}({signature(_SOFTMAX)})")


_SPREAD = ("ptr mask", "i64 step", "i64 keys", "ptr scores", "i64 width")


def spread(w: Writer, shape: Shape) -> str:
    """Broadcast a mask that is the same for all queries, each element to a row of lanes."""
    p = parameters(*_SPREAD)
    with w.loop(ZERO, p["keys"]) as k:
        one = w.splat(w.load(w.at(p["mask"], w.mul(k, p["step"])), "float"), shape.lanes)
        row = w.at(p["scores"], w.mul(k, p["width"]))
        with w.loop(ZERO, p["width"], shape.lanes) as v:
            w.store(one, w.at(row, v))
    return w.function(f"define internal void @fs.spread({signature(_SPREAD)})")


#: `first` is the first query, of `count`; the addresses are those of its head.
BLOCK = (
    "ptr query", "ptr key", "ptr value", "ptr mask", "i64 first", "i64 count", "i64 limit", "i64 causal", "i64 depth",
    "i64 query_row", "i64 key_row", "i64 value_row", "i64 mask_row", "i64 mask_column", "float scale", "ptr memory",
)  # fmt: skip


def block(w: Writer, shape: Shape, vectors: int) -> str:
    """Sums and state of a block of queries over the first `limit` keys."""
    p, lanes = parameters(*BLOCK), shape.lanes
    width, offsets = vectors * lanes, shape.offsets
    at = {name: w.at(p["memory"], offset) for name, offset in offsets.items()}
    begin_rows(w, shape, vectors, at)
    one, wide = constant(1, "i64"), constant(width, "i64")
    query = w.at(p["query"], w.mul(p["first"], p["query_row"]))
    w.call("@fs.pack", query, p["query_row"], one, p["count"], p["depth"], at["queries"], wide)
    masked = w.negated(w.is_null(p["mask"]))
    same = w.compare("eq", p["mask_row"], 0)
    with w.loop(ZERO, p["limit"], KEYS) as start:
        keys = w.least(w.sub(p["limit"], start), KEYS)
        with w.when(masked):
            column = w.at(p["mask"], w.mul(start, p["mask_column"]))
            with w.when(same):
                w.call("@fs.spread", column, p["mask_column"], keys, at["scores"], wide)
            with w.when(w.negated(same)):
                row = w.at(column, w.mul(p["first"], p["mask_row"]))
                w.call("@fs.pack", row, p["mask_row"], p["mask_column"], p["count"], keys, at["scores"], wide)
        for first, rows in in_heights(w, keys, shape.heights[vectors]):
            key = w.at(p["key"], w.mul(w.add(start, first), p["key_row"]))
            scores = w.at(at["scores"], w.mul(first, width))
            given = (at["queries"], key, p["key_row"], p["depth"], scores, p["scale"], masked)
            w.call(f"@fs.scores.{vectors}.{rows}", *given)
        ahead = w.select(w.compare("ne", p["causal"], 0), w.sub(p["first"], start), constant(1 << 40, "i64"))
        state = (at["greatest"], at["total"], at["factor"])
        w.call(f"@fs.softmax.{vectors}", at["scores"], keys, *state, ahead)
        later = w.compare("ne", start, 0)
        values = w.at(p["value"], w.mul(start, p["value_row"]))
        for first, rows in in_heights(w, p["depth"], shape.heights[vectors]):
            sums = w.at(at["sums"], w.mul(first, width))
            given = (at["scores"], w.at(values, first), p["value_row"], keys, sums, at["factor"], later)
            w.call(f"@fs.values.{vectors}.{rows}", *given)
    return w.function(f"define internal void @fs.block.{vectors}({signature(BLOCK)})")


def in_heights(w: Writer, count: Value, heights: tuple[int, ...]) -> Iterator[tuple[Value, int]]:
    """Yield (first, rows) of tiles over `count` rows, inside of their loops."""
    start = ZERO
    for rows in heights:
        end = w.add(start, w.mul(w.binary("udiv", w.sub(count, start), rows), rows))
        with w.loop(start, end, rows) as first:
            yield first, rows
        start = end


def begin_rows(w: Writer, shape: Shape, vectors: int, at: dict[str, Value]) -> None:
    """The state of rows of which nothing was seen yet."""
    for v in range(vectors):
        w.store(constant(LOWEST, "float", shape.lanes), w.at(at["greatest"], v * shape.lanes))
        w.store(constant(0.0, "float", shape.lanes), w.at(at["total"], v * shape.lanes))


FINISH = ("ptr memory", "i64 count", "i64 depth", "i64 width", "ptr out", "i64 out_row", "ptr lse", "i64 lse_row")


def finish(w: Writer, shape: Shape) -> str:
    """Results of a block of queries: sums over totals, transposed, and logarithms; zeros for fully masked rows."""
    p, lanes, offsets = parameters(*FINISH), shape.lanes, shape.offsets
    at = {name: w.at(p["memory"], offset) for name, offset in offsets.items()}
    with w.loop(ZERO, p["count"], lanes) as v:
        total, greatest = (w.load(w.at(at[name], v), "float", lanes) for name in ("total", "greatest"))
        total = w.select(w.compare("oeq", total, 0.0), w.number(1.0, total), total)
        w.store(logarithm(w, greatest, total), w.at(at["greatest"], v))
        inverse = w.div(w.number(1.0, total), total)
        goal = w.at(p["out"], w.mul(v, p["out_row"]))
        _write_vector(
            w, shape, (at["sums"], v, p["width"], inverse), (goal, p["out_row"], p["depth"]), p["count"], "f32"
        )
    with w.loop(ZERO, p["count"]) as one:
        w.store(w.load(w.at(at["greatest"], one), "float"), w.at(p["lse"], w.mul(one, p["lse_row"])))
    return w.function(f"define internal void @fs.finish({signature(FINISH)})")


def _write_vector(
    w: Writer, shape: Shape, given: tuple[Value, ...], out: tuple[Value, ...], count: Value, kind: str
) -> None:
    """Write the rows of one vector from the `v`-th row on: their sums over totals, transposed, in a type."""
    (sums, v, width, inverse), (goal, out_row, length) = given, out
    lanes, memory, left = shape.lanes, DTYPES[kind].memory, w.sub(count, v)
    with w.loop(ZERO, length, lanes) as d:
        inside = w.first_lanes(w.sub(length, d), lanes)
        source = w.at(sums, w.add(w.mul(d, width), v))
        rows = []
        for _ in range(lanes):
            rows.append(w.mul(w.load(source, "float", lanes), inverse))
            source = w.at(source, width)
        place = w.at(goal, d, memory)
        for k, row in enumerate(transposed(w, rows)):
            there = w.binary("and", inside, w.splat(w.compare("ugt", left, k), lanes))
            w.masked_store(to_memory(w, emit_cast(w, row, "f32", kind), kind), place, there)
            place = w.at(place, out_row, memory)


RESULTS = "ptr memory", "i64 count", "i64 length", "i64 width", "ptr out"


def write_results(w: Writer, shape: Shape, kind: str, zero_masked_rows: bool) -> str:
    """Results of a block in a type, one row behind the other; fully masked rows are NaN unless they are zeros."""
    p, lanes, offsets = parameters(*RESULTS), shape.lanes, shape.offsets
    at = {name: w.at(p["memory"], offset) for name, offset in offsets.items()}
    with w.loop(ZERO, p["count"], lanes) as v:
        total = w.load(w.at(at["total"], v), "float", lanes)
        if zero_masked_rows:
            total = w.select(w.compare("oeq", total, 0.0), w.number(1.0, total), total)
        inverse = w.div(w.number(1.0, total), total)
        goal = w.at(p["out"], w.mul(v, p["length"]), DTYPES[kind].memory)
        given = (at["sums"], v, p["width"], inverse)
        _write_vector(w, shape, given, (goal, p["length"], p["length"]), p["count"], kind)
    return w.function(f"define internal void @fs.results.{kind}.{int(zero_masked_rows)}({signature(RESULTS)})")

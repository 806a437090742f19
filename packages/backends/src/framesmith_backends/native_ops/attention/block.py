"""A block of queries: over all keys it sees, and its results."""

from __future__ import annotations

from collections.abc import Iterator

from framesmith_backends.native_ops.attention.shape import KEYS, LOWEST, Shape
from framesmith_backends.native_ops.attention.softmax import logarithm
from framesmith_backends.native_ops.matmul.pack import transposed
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters, signature

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
    for v in range(vectors):
        w.store(constant(LOWEST, "float", lanes), w.at(at["greatest"], v * lanes))
        w.store(constant(0.0, "float", lanes), w.at(at["total"], v * lanes))
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
        for first, rows in _in_heights(w, keys, shape.heights[vectors]):
            key = w.at(p["key"], w.mul(w.add(start, first), p["key_row"]))
            scores = w.at(at["scores"], w.mul(first, width))
            given = (at["queries"], key, p["key_row"], p["depth"], scores, p["scale"], masked)
            w.call(f"@fs.scores.{vectors}.{rows}", *given)
        ahead = w.select(w.compare("ne", p["causal"], 0), w.sub(p["first"], start), constant(1 << 40, "i64"))
        state = (at["greatest"], at["total"], at["factor"])
        w.call(f"@fs.softmax.{vectors}", at["scores"], keys, *state, ahead)
        later = w.compare("ne", start, 0)
        values = w.at(p["value"], w.mul(start, p["value_row"]))
        for first, rows in _in_heights(w, p["depth"], shape.heights[vectors]):
            sums = w.at(at["sums"], w.mul(first, width))
            given = (at["scores"], w.at(values, first), p["value_row"], keys, sums, at["factor"], later)
            w.call(f"@fs.values.{vectors}.{rows}", *given)
    return w.function(f"define internal void @fs.block.{vectors}({signature(BLOCK)})")


def _in_heights(w: Writer, count: Value, heights: tuple[int, ...]) -> Iterator[tuple[Value, int]]:
    """Yield (first, rows) of tiles over `count` rows, inside of their loops."""
    start = ZERO
    for rows in heights:
        end = w.add(start, w.mul(w.binary("udiv", w.sub(count, start), rows), rows))
        with w.loop(start, end, rows) as first:
            yield first, rows
        start = end


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
        left = w.sub(p["count"], v)
        with w.loop(ZERO, p["depth"], lanes) as d:
            inside = w.first_lanes(w.sub(p["depth"], d), lanes)
            source = w.at(at["sums"], w.add(w.mul(d, p["width"]), v))
            rows = []
            for _ in range(lanes):
                rows.append(w.mul(w.load(source, "float", lanes), inverse))
                source = w.at(source, p["width"])
            goal = w.at(w.at(p["out"], w.mul(v, p["out_row"])), d)
            for k, row in enumerate(transposed(w, rows)):
                there = w.binary("and", inside, w.splat(w.compare("ugt", left, k), lanes))
                w.masked_store(row, goal, there)
                goal = w.at(goal, p["out_row"])
    with w.loop(ZERO, p["count"]) as one:
        w.store(w.load(w.at(at["greatest"], one), "float"), w.at(p["lse"], w.mul(one, p["lse_row"])))
    return w.function(f"define internal void @fs.finish({signature(FINISH)})")

"""Register tiles: broadcast elements of keys or values times vectors of queries. See Note [Across queries]."""

from __future__ import annotations

from framesmith_backends.native_ops.attention.shape import Shape
from framesmith_backends.render.llvm.builder import Value, constant
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
        _step(w, lanes, sums, [w.at(key, d) for key in keys], now)
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
                _step(w, lanes, sums, [w.at(head, r) for r in range(rows)], now)
                head, now = w.at(head, p["value_row"]), w.at(now, vectors * lanes)
            w.store(head, value, 0)
            w.store(now, here, 0)
    return [[w.read(cell, "float", lanes) for cell in row] for row in sums]


def _step(w: Writer, lanes: int, sums: list[list[Value]], ones: list[Value], wide: Value) -> None:
    """To each sum its row's one number times its vector."""
    parts = [w.load(w.at(wide, v * lanes), "float", lanes) for v in range(len(sums[0]))]
    for row, one in zip(sums, ones, strict=True):
        number = w.splat(w.load(one, "float"), lanes)
        for cell, part in zip(row, parts, strict=True):
            w.store(w.fma(number, part, w.read(cell, "float", lanes)), cell, 0)


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

"""Register tiles: `rows` by a few vectors of sums, kept in registers over a block of the inner dimension."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.render.llvm.builder import Builder, Value, constant
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters, signature

#: The epilogue, applied to vectors of finished elements.
Element = Callable[[Builder, Value], Value]
UNROLL = 4
# Tiles of few rows are wider where the second operand is read where it lies: more sums, longer reads.
WIDE = {1: 8, 2: 8}


def tile_shapes(rows: tuple[int, ...], vectors: int) -> list[tuple[int, int]]:
    """Every (rows, vectors) that is called: narrow tiles only of the tallest, whose packed operand has whole panels."""
    shapes = [(r, vectors) for r in rows]
    return [*shapes, *WIDE.items(), (rows[0], 1)]


def micro_name(rows: int, vectors: int) -> str:
    return f"@fs.tile.{rows}.{vectors}"


def micro_kernel(w: Writer, lanes: int, rows: int, vectors: int, element: Element | None) -> str:
    """c = alpha * (a @ b) + (beta * c + bias) on one tile, of which the first `cols` columns are written.

    `a` is packed: `rows` floats for each step of the inner dimension. `b` has its row of the tile at each `b_step`
    floats. Where beta is zero, c is not read. `last` says that the sums are finished: `element` is applied.
    """
    names = ("ptr a", "ptr b", "i64 b_step", "i64 depth", "ptr c", "i64 c_step", "i64 cols", "float alpha",
             "float beta", "ptr bias", "i1 last")  # fmt: skip
    p = parameters(*names)
    sums = [[w.cell(constant(0.0, "float", lanes)) for _ in range(vectors)] for _ in range(rows)]
    a, b = w.cell(p["a"]), w.cell(p["b"])
    row = p["c"]
    for _ in range(rows):
        for j in range(vectors):
            w.prefetch(w.at(row, j * lanes), written=True)
        row = w.at(row, p["c_step"])
    several = UNROLL if rows * vectors > 8 and vectors > 1 else 2
    whole = w.binary("and", p["depth"], -several)
    for first, last, unroll in ((ZERO, whole, several), (whole, p["depth"], 1)):
        with w.loop(first, last, unroll):
            a_now, b_now = w.read(a, "ptr"), w.read(b, "ptr")
            for step in range(unroll):
                parts = [w.load(w.at(b_now, j * lanes), "float", lanes) for j in range(vectors)]
                for r in range(rows):
                    one = w.splat(w.load(w.at(a_now, step * rows + r), "float"), lanes)
                    for j in range(vectors):
                        w.store(w.fma(one, parts[j], w.read(sums[r][j], "float", lanes)), sums[r][j], 0)
                b_now = w.at(b_now, p["b_step"])
            w.store(w.at(a_now, unroll * rows), a, 0)
            w.store(b_now, b, 0)
    totals = [[w.read(cell, "float", lanes) for cell in row] for row in sums]
    for j in range(vectors):
        finish(w, p, [row[j] for row in totals], j * lanes, element)
    return w.function(f"define internal void {micro_name(rows, vectors)}({signature(names)})")


def finish(w: Writer, p: dict[str, Value], totals: list[Value], column: int, element: Element | None) -> None:
    """Write one column of vectors, the rows with stride `c_step`."""
    lanes = totals[0].lanes
    left = w.sub(w.most(p["cols"], column), column)
    inside = w.first_lanes(left, lanes)
    nothing = constant(0, "i1", lanes)
    reads = w.select(w.splat(w.compare("une", p["beta"], 0.0), lanes), inside, nothing)
    biased = w.is_set(p["bias"])
    bias = w.masked_load(w.at(p["bias"], column), w.select(w.splat(biased, lanes), inside, nothing))
    alpha, beta = w.splat(p["alpha"], lanes), w.splat(p["beta"], lanes)
    row = p["c"]
    for total in totals:
        place = w.at(row, column)
        value = w.fma(total, alpha, w.fma(w.masked_load(place, reads), beta, bias))
        if element is not None:
            value = w.select(w.splat(p["last"], lanes), element(w, value), value)
        w.masked_store(value, place, inside)
        row = w.at(row, p["c_step"])

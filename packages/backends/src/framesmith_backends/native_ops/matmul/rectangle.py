"""One thread's part of a matmul: loops over blocks of the second operand, panels of rows, register tiles.

A register tile is `rows` by a few vectors of sums, kept in registers over a block of the inner dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from framesmith_backends.native_ops.matmul.blocking import Blocking
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
                multiply_add(w, lanes, sums, (w.at(a_now, step * rows + r) for r in range(rows)), b_now)
                b_now = w.at(b_now, p["b_step"])
            w.store(w.at(a_now, unroll * rows), a, 0)
            w.store(b_now, b, 0)
    totals = [[w.read(cell, "float", lanes) for cell in row] for row in sums]
    for j in range(vectors):
        finish(w, p, [row[j] for row in totals], j * lanes, element)
    return w.function(f"define internal void {micro_name(rows, vectors)}({signature(names)})")


def multiply_add(w: Writer, lanes: int, sums: list[list[Value]], ones: Iterable[Value], wide: Value) -> None:
    """Add to each row of sums the number at its address, times the vectors that begin at `wide`."""
    parts = [w.load(w.at(wide, j * lanes), "float", lanes) for j in range(len(sums[0]))]
    for row, one in zip(sums, ones, strict=True):
        number = w.splat(w.load(one, "float"), lanes)
        for cell, part in zip(row, parts, strict=True):
            w.store(w.fma(number, part, w.read(cell, "float", lanes)), cell, 0)


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


NAMES = ("ptr a", "ptr b", "ptr c", "ptr bias", "i64 m", "i64 n", "i64 k", "i64 a_row", "i64 a_col", "i64 b_row",
         "i64 b_col", "i64 c_row", "float alpha", "float beta", "ptr scratch")  # fmt: skip
# Up to this many panels of rows, an operand whose rows are contiguous is read where it lies.
DIRECT_PANELS = 5


def scratch_floats(cut: Blocking) -> int:
    """The packed block, one packed panel of rows, and what packing may write beyond each."""
    return cut.columns * cut.depth + cut.depth * cut.rows[0] + 4 * cut.width


def rectangle(w: Writer, cut: Blocking) -> str:
    """c = alpha * (a @ b) + (beta * c + bias); sums of more than `depth` elements are gathered in c."""
    p = parameters(*NAMES)
    panel = w.at(p["scratch"], cut.columns * cut.depth + 2 * cut.width)
    contiguous = w.compare("eq", p["b_col"], 1)
    direct = w.binary("and", contiguous, w.compare("ule", p["m"], DIRECT_PANELS * cut.rows[0]))
    with w.loop(ZERO, p["n"], cut.columns) as j, w.loop(ZERO, w.most(p["k"], 1), cut.depth) as k:
        columns = w.least(w.sub(p["n"], j), cut.columns)
        depth = w.least(w.sub(p["k"], k), cut.depth)
        first = w.compare("eq", k, 0)
        here = {
            "j": j, "k": k, "columns": columns, "depth": depth, "direct": direct, "panel": panel,
            "b": w.at(w.at(p["b"], w.mul(k, p["b_row"])), w.mul(j, p["b_col"])),
            "beta": w.select(first, p["beta"], constant(1.0, "float")),
            "bias": _bias(w, p["bias"], j, first),
            "last": w.compare("uge", w.add(k, depth), p["k"]),
        }  # fmt: skip
        _pack_block(w, p, here, cut)
        start = ZERO
        for rows in cut.rows:
            left = w.sub(p["m"], start)
            end = w.add(start, w.mul(w.binary("udiv", left, rows), rows))
            with w.loop(start, end, rows) as i:
                _panel(w, p, here, cut, i, rows)
            start = end
    return w.function(f"define internal void @fs.rectangle({signature(NAMES)})")


def _bias(w: Writer, bias: Value, j: Value, first: Value) -> Value:
    """The bias of these columns, which is added with the first block; null where there is none."""
    wanted = w.binary("and", first, w.is_set(bias))
    return w.select(wanted, w.at(bias, j), Value("null", "ptr"))


def _pack_block(w: Writer, p: dict[str, Value], here: dict[str, Value], cut: Blocking) -> None:
    """Panels of columns, but for whole ones that are read where they lie."""
    with w.loop(ZERO, here["columns"], cut.width) as j:
        count = w.least(w.sub(here["columns"], j), cut.width)
        whole = w.compare("eq", count, cut.width)
        skipped = w.binary("and", here["direct"], whole)
        with w.when(w.negated(skipped)):
            source, to = w.at(here["b"], w.mul(j, p["b_col"])), w.at(p["scratch"], w.mul(j, cut.depth))
            wide = constant(cut.width, "i64")
            w.call("@fs.pack", source, p["b_col"], p["b_row"], count, here["depth"], to, wide)


def _panel(w: Writer, p: dict[str, Value], here: dict[str, Value], cut: Blocking, i: Value, rows: int) -> None:
    """One panel of rows against every panel of columns."""
    source = w.at(w.at(p["a"], w.mul(i, p["a_row"])), w.mul(here["k"], p["a_col"]))
    panel, count = here["panel"], constant(rows, "i64")
    packed = (source, p["a_row"], p["a_col"], count, here["depth"], panel, count)
    if rows == 1:
        lies = w.compare("eq", p["a_col"], 1)
        with w.when(w.negated(lies)):
            w.call("@fs.pack", *packed)
        panel = w.select(lies, source, panel)
    else:
        w.call("@fs.pack", *packed)
    c = w.at(w.at(p["c"], w.mul(i, p["c_row"])), here["j"])
    biased = w.is_set(here["bias"])
    start = ZERO
    if rows in WIDE:
        wide = WIDE[rows] * cut.lanes
        start = w.select(here["direct"], w.mul(w.binary("udiv", here["columns"], wide), wide), ZERO)
        with w.loop(ZERO, start, wide) as j:
            there = (w.at(here["b"], j), p["b_row"])
            _tile(w, p, here, (panel, *there), w.at(c, j), (j, constant(wide, "i64"), biased), (rows, WIDE[rows]))
    with w.loop(start, here["columns"], cut.width) as j:
        left = w.sub(here["columns"], j)
        lies = w.binary("and", here["direct"], w.compare("uge", left, cut.width))
        b = w.select(lies, w.at(here["b"], j), w.at(p["scratch"], w.mul(j, cut.depth)))
        step = w.select(lies, p["b_row"], constant(cut.width, "i64"))
        place, columns = w.at(c, j), (j, left, biased)
        if rows != cut.rows[0]:
            _tile(w, p, here, (panel, b, step), place, columns, (rows, cut.vectors))
        else:
            narrow = w.compare("ule", left, cut.lanes)
            with w.when(narrow):
                _tile(w, p, here, (panel, b, step), place, columns, (rows, 1))
            with w.when(w.negated(narrow)):
                _tile(w, p, here, (panel, b, step), place, columns, (rows, cut.vectors))


def _tile(
    w: Writer,
    p: dict[str, Value],
    here: dict[str, Value],
    operands: tuple[Value, Value, Value],
    c: Value,
    columns: tuple[Value, Value, Value],
    shape: tuple[int, int],
) -> None:
    """One register tile at column j of the block, of which `left` are left; `biased` says whether there is a bias."""
    j, left, biased = columns
    bias = w.select(biased, w.at(here["bias"], j), Value("null", "ptr"))
    given = (*operands, here["depth"], c, p["c_row"], left, p["alpha"], here["beta"], bias, here["last"])
    w.call(micro_name(*shape), *given)

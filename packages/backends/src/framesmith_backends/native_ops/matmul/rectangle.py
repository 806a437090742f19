"""One thread's part of a matmul: loops over blocks of the second operand, panels of rows, register tiles."""

from __future__ import annotations

from framesmith_backends.native_ops.matmul.blocking import Blocking
from framesmith_backends.native_ops.matmul.micro import WIDE, micro_name
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters, signature

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
            w.line(
                f"call void @fs.pack({source.typed}, {p['b_col'].typed}, {p['b_row'].typed}, {count.typed}, "
                f"{here['depth'].typed}, {to.typed}, i64 {cut.width})"
            )


def _panel(w: Writer, p: dict[str, Value], here: dict[str, Value], cut: Blocking, i: Value, rows: int) -> None:
    """One panel of rows against every panel of columns."""
    source = w.at(w.at(p["a"], w.mul(i, p["a_row"])), w.mul(here["k"], p["a_col"]))
    packed = (
        f"call void @fs.pack({source.typed}, {p['a_row'].typed}, {p['a_col'].typed}, i64 {rows}, "
        f"{here['depth'].typed}, {here['panel'].typed}, i64 {rows})"
    )
    panel = here["panel"]
    if rows == 1:
        lies = w.compare("eq", p["a_col"], 1)
        with w.when(w.negated(lies)):
            w.line(packed)
        panel = w.select(lies, source, panel)
    else:
        w.line(packed)
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
    arguments = (*operands, here["depth"], c, p["c_row"], left, p["alpha"], here["beta"], bias, here["last"])
    w.line(f"call void {micro_name(*shape)}({', '.join(v.typed for v in arguments)})")

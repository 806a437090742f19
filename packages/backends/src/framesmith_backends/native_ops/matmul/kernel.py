"""The whole matmul as one module: what kind of loops for which shape, and how threads divide it."""

from __future__ import annotations

from framesmith_backends.native_ops.job import POINTER, Job, OperatorModule, call
from framesmith_backends.native_ops.matmul import dot, rectangle
from framesmith_backends.native_ops.matmul.blocking import Blocking, blocking
from framesmith_backends.native_ops.matmul.pack import pack
from framesmith_backends.native_ops.matmul.rectangle import Element, micro_kernel, tile_shapes
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.module import PARALLEL_CYCLES
from framesmith_backends.render.llvm.runtime import SCRATCH
from framesmith_backends.render.llvm.writer import Writer, parameters
from framesmith_backends.target import Processor

#: Strides count elements. c has contiguous rows; `bias` may be null. The entry sets the last three: the grid, and
#: whether elements are dot products (1), which becomes `NO_MEMORY` for want of memory.
JOB = Job(
    "ptr a", "ptr b", "ptr c", "ptr bias", "i64 m", "i64 n", "i64 k", "i64 a_row", "i64 a_col", "i64 b_row",
    "i64 b_col", "i64 c_row", "float alpha", "float beta", "i64 batches", "i64 a_batch", "i64 b_batch", "i64 c_batch",
    "i64 across", "i64 down", "i64 dots",
)  # fmt: skip
NO_MEMORY = -1
#: Up to this many rows, matmuls of contiguous rows with contiguous columns are dot products.
DOT_ROWS = 8


def render_matmuls(target: Processor, element: Element | None = None, cut: Blocking | None = None) -> str:
    """A module with `void fs_matmul(ptr job)`: c = element(alpha * (a @ b) + (beta * c + bias)).

    The text is the same for all shapes. The result is the same for any number of threads.
    """
    cut = blocking(target) if cut is None else cut
    module = OperatorModule(target, vectors="")
    writer = module.writer
    parts = [pack(writer(), cut.lanes)]
    parts += [micro_kernel(writer(), cut.lanes, r, v, element) for r, v in tile_shapes(cut.rows, cut.vectors)]
    parts.append(dot.totals(writer(), cut.lanes))
    parts += [dot.dot_kernel(writer(), cut.lanes, r, element) for r in dot.dot_heights(cut.lanes)]
    parts += [rectangle.rectangle(writer(), cut), _part(writer(), cut), _entry(writer(), cut)]
    return module.text(SCRATCH, *parts)


def _part(w: Writer, cut: Blocking) -> str:
    """The cells [first, last) of the grid of batches, rows and columns, by one thread."""
    p, j = parameters("ptr job", "i64 first", "i64 last"), JOB.load(w)
    dots = w.compare("ne", j["dots"], 0)
    size = (rectangle.scratch_floats(cut) * 4 + 4095) // 4096 * 4096
    w.line(f"br i1 {dots.text}, label %bare, label %buffer")
    w.line("buffer:")
    buffer = w.emit(f"call ptr @fs.take(i64 {size})", "ptr")
    missing = w.is_null(buffer)
    w.line(f"br i1 {missing.text}, label %fail, label %bare")
    w.line("fail:")
    w.store(constant(NO_MEMORY, "i64"), JOB.at(w, "dots"), 8)
    w.line("ret void")
    w.line("bare:")
    scratch = w.emit(f"phi ptr [ null, %entry ], [ {buffer.text}, %buffer ]", "ptr")
    per_batch = w.mul(j["across"], j["down"])
    height = w.binary("udiv", w.sub(w.add(j["m"], j["down"]), 1), j["down"])
    wide = w.binary("udiv", w.sub(w.add(j["n"], j["across"]), 1), j["across"])
    width = w.rounded_up(wide, cut.width)
    with w.loop(p["first"], p["last"]) as cell:
        batch, rest = w.binary("udiv", cell, per_batch), w.binary("urem", cell, per_batch)
        row = w.least(w.mul(w.binary("udiv", rest, j["across"]), height), j["m"])
        column = w.least(w.mul(w.binary("urem", rest, j["across"]), width), j["n"])
        m, n = w.least(w.sub(j["m"], row), height), w.least(w.sub(j["n"], column), width)
        a = w.at(w.at(j["a"], w.mul(batch, j["a_batch"])), w.mul(row, j["a_row"]))
        b = w.at(w.at(j["b"], w.mul(batch, j["b_batch"])), w.mul(column, j["b_col"]))
        c = w.at(w.at(w.at(j["c"], w.mul(batch, j["c_batch"])), w.mul(row, j["c_row"])), column)
        unbiased = w.is_null(j["bias"])
        bias = w.select(unbiased, Value("null", "ptr"), w.at(j["bias"], column))
        here = {**j, "a": a, "b": b, "c": c, "bias": bias, "m": m, "n": n, "scratch": scratch}
        with w.when(dots):
            _dots(w, here, j["m"], cut)
        with w.when(w.negated(dots)):
            call(w, "@fs.rectangle", rectangle.NAMES, here)
    with w.when(w.negated(dots)):
        w.call("@fs.give", scratch)
    return w.function("define internal void @fs.part(ptr %job, i64 %first, i64 %last)")


def _dots(w: Writer, here: dict[str, Value], rows: Value, cut: Blocking) -> None:
    """The dot kernel for the matmul's number of rows, not the part's: sums must not depend on threads."""
    heights = dot.dot_heights(cut.lanes)
    for at, height in enumerate(heights):
        fits = w.compare("uge", rows, height) if height > 1 else constant(1, "i1")
        if at:
            fits = w.binary("and", fits, w.compare("ult", rows, heights[at - 1]))
        with w.when(fits):
            call(w, dot.dot_name(height), dot.NAMES, here)


def _entry(w: Writer, cut: Blocking) -> str:
    """Choose a grid, and run it."""
    p = JOB.load(w)
    lies = w.binary("and", w.compare("eq", p["a_col"], 1), w.compare("eq", p["b_row"], 1))
    few = w.compare("ule", p["m"], DOT_ROWS)
    dots = w.binary("and", w.binary("and", lies, few), w.compare("uge", p["k"], cut.lanes))
    w.store(w.convert("zext", dots, "i64"), JOB.at(w, "dots"), 8)
    work = w.binary("udiv", w.mul(w.mul(w.mul(p["m"], p["n"]), w.most(p["k"], 1)), p["batches"]), cut.lanes)
    worth = w.least(w.binary("udiv", w.mul(work, 2), PARALLEL_CYCLES), 1 << 16)
    threads = w.convert("zext", w.emit("call i32 @fs_num_threads()", "i32"), "i64")
    most = w.least(w.most(worth, 1), threads)
    batches = w.most(p["batches"], 1)
    across, down = _grid(w, p, w.binary("udiv", w.sub(w.add(most, batches), 1), batches), dots)
    w.store(across, JOB.at(w, "across"), 8)
    w.store(down, JOB.at(w, "down"), 8)
    cells = w.mul(w.mul(across, down), p["batches"])
    nothing = w.compare("eq", w.mul(w.mul(p["m"], p["n"]), p["batches"]), 0)
    with w.when(w.negated(nothing)):
        short = w.convert("trunc", most, "i32")
        w.call("@fs.parallel", Value("@fs.part", "ptr"), POINTER, cells, short)
    return w.function("define void @fs_matmul(ptr %job)")


def _grid(w: Writer, p: dict[str, Value], parts: Value, dots: Value) -> tuple[Value, Value]:
    """(parts across, parts down) of so many parts of each batch: those that pack the least. Dot products go across."""
    best, across = w.cell(constant((1 << 62), "i64")), w.cell(parts)
    with w.loop(constant(1, "i64"), w.add(parts, 1)) as a:
        d = w.binary("udiv", parts, a)
        packed = w.add(w.mul(a, p["m"]), w.mul(d, p["n"]))
        divides = w.compare("eq", w.mul(a, d), parts)
        better = w.binary("and", divides, w.compare("ult", packed, w.read(best, "i64")))
        better = w.binary("and", better, w.negated(dots))
        with w.when(better):
            w.store(packed, best, 0)
            w.store(a, across, 0)
    found = w.read(across, "i64")
    return found, w.binary("udiv", parts, found)

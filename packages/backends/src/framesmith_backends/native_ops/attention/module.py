"""The module: blocks of queries of all heads, and how threads divide them."""

from __future__ import annotations

from framesmith_backends.native_ops.attention.block import (
    BLOCK,
    FINISH,
    block,
    finish,
    scores_tile,
    softmax,
    spread,
    values_tile,
)
from framesmith_backends.native_ops.attention.row import ROW, row
from framesmith_backends.native_ops.attention.shape import JOB, Shape, shape_of
from framesmith_backends.native_ops.job import BEGIN, END, OperatorModule, call, entry, threaded
from framesmith_backends.native_ops.matmul.pack import pack
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.runtime import SCRATCH
from framesmith_backends.render.llvm.writer import Writer
from framesmith_backends.target import Processor


def render_attention(widths: tuple[int, ...], target: Processor) -> str:
    """A module with `void fs_attention(ptr job, i64 tasks, i32 threads)`.

    Tasks are blocks of queries (`blocks_of`). There is code for these `widths` alone (`widths_of`): all of it takes
    0.3 s to compile.
    """
    shape, module = shape_of(target), OperatorModule(target)
    writer = module.writer
    parts = [pack(writer(), shape.lanes)]
    for vectors in widths:
        heights = shape.heights[vectors]
        parts += [scores_tile(writer(), shape, vectors, rows) for rows in heights]
        parts += [values_tile(writer(), shape, vectors, rows) for rows in heights]
        parts += [softmax(writer(), shape, vectors), block(writer(), shape, vectors)]
    parts += [spread(writer(), shape), finish(writer(), shape)] if widths else [row(writer(), shape)]
    parts += [_part(writer(), shape, widths), entry("fs_attention", {"fs.part": "tasks"})]
    return module.text(SCRATCH, *parts)


def _part(w: Writer, shape: Shape, widths: tuple[int, ...]) -> str:
    """Some of the tasks, by one thread."""
    job = JOB.load(w)
    memory = w.emit(f"call ptr @fs.take(i64 {shape.bytes})", "ptr")
    missing = w.is_null(memory)
    with w.when(missing):
        w.store(constant(1, "i64"), JOB.at(w, "failed"), 8)
    vectors = w.binary("udiv", w.add(job["queries"], shape.lanes - 1), shape.lanes)
    blocks = w.binary("udiv", w.add(vectors, shape.most - 1), shape.most) if widths else job["queries"]
    end = w.select(missing, BEGIN, END)
    with w.loop(BEGIN, end) as task:
        line, turn = w.binary("udiv", task, blocks), w.binary("urem", task, blocks)
        # From both ends in turn: causal queries see more keys the later they are, and threads get equal work.
        half, odd = w.binary("lshr", turn, 1), w.binary("and", turn, 1)
        which = w.select(w.compare("ne", odd, 0), w.sub(w.sub(blocks, 1), half), half)
        here = {**job, **_of_head(w, job, line), "memory": memory}
        if widths:
            _block_of_queries(w, shape, widths, here, which, (vectors, blocks))
        else:
            _one_query(w, here, which)
    with w.when(w.negated(missing)):
        w.call("@fs.give", memory)
    return threaded(w, "fs.part")


def _of_head(w: Writer, job: dict[str, Value], line: Value) -> dict[str, Value]:
    """The addresses of the operands and results of one head."""
    batch, head = w.binary("udiv", line, job["heads"]), w.binary("urem", line, job["heads"])
    shared = w.binary("udiv", head, job["times"])
    heads = {"query": head, "key": shared, "value": shared, "mask": head, "out": head, "lse": head}
    found = {}
    for name, which in heads.items():
        offset = w.add(w.mul(batch, job[f"{name}_batch"]), w.mul(which, job[f"{name}_head"]))
        found[name] = _moved(w, job[name], offset)
    return found


def _moved(w: Writer, place: Value, offset: Value) -> Value:
    """An address moved by so many floats, null if it is null."""
    return w.select(w.is_null(place), place, w.at(place, offset))


def _limit(w: Writer, here: dict[str, Value], end: Value) -> Value:
    """The number of keys that queries before the `end`-th see."""
    return w.select(w.compare("ne", here["causal"], 0), w.least(here["keys"], end), here["keys"])


def _one_query(w: Writer, here: dict[str, Value], which: Value) -> None:
    rows = ("query", "mask", "out", "lse")
    moved = {name: _moved(w, here[name], w.mul(which, here[f"{name}_row"])) for name in rows}
    given = {**here, **moved, "limit": _limit(w, here, w.add(which, 1))}
    call(w, "@fs.row", ROW, given)


def _block_of_queries(w: Writer, shape: Shape, widths: tuple[int, ...], here: dict[str, Value], which: Value,
                      cut: tuple[Value, Value]) -> None:  # fmt: skip
    """The `which`-th of the blocks that the vectors are divided among."""
    vectors, blocks = cut
    each, more = w.binary("udiv", vectors, blocks), w.binary("urem", vectors, blocks)
    first = w.mul(w.add(w.mul(which, each), w.least(which, more)), shape.lanes)
    wide = w.add(each, w.convert("zext", w.compare("ult", which, more), "i64"))
    width = w.mul(wide, shape.lanes)
    count = w.least(w.sub(here["queries"], first), width)
    given = {**here, "first": first, "count": count, "limit": _limit(w, here, w.add(first, count)), "width": width}
    for size in widths:
        with w.when(w.compare("eq", wide, size)):
            call(w, f"@fs.block.{size}", BLOCK, given)
    given |= {name: w.at(here[name], w.mul(first, here[f"{name}_row"])) for name in ("out", "lse")}
    call(w, "@fs.finish", FINISH, given)

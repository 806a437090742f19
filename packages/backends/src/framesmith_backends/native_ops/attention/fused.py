"""Fused attention as a kernel of a run: softmax of an expression of QKᵀ, times V, a block of rows at a time.

The tiles are those of the native attention (Note [Across queries]); what is computed of scores is in `scores.py`.
Keys, values and queries of 16 bits, and those whose elements do not lie side by side, are copied to rows of float32, a
block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.fused.attention import FusedAttention
from framesmith_backends.ir.program import BufferView
from framesmith_backends.ir.symbolic.size import Size, Symbol, numel
from framesmith_backends.native_ops.attention.block import (
    begin_rows,
    in_heights,
    scores_tile,
    softmax,
    values_tile,
    write_results,
)
from framesmith_backends.native_ops.attention.scores import (
    ALL,
    KEPT,
    NOTHING,
    ROWS,
    SCORES,
    SEEN,
    Scores,
    Written,
    kept_function,
    scores_function,
    scores_of,
    seen_function,
)
from framesmith_backends.native_ops.attention.shape import KEYS, Shape, block_widths, shape_of
from framesmith_backends.native_ops.job import BEGIN, END, call
from framesmith_backends.native_ops.matmul.pack import pack
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.loops.kernel import Shape as Extent
from framesmith_backends.render.llvm.loops.sizes import emit_size
from framesmith_backends.render.llvm.ops import emit_cast, from_memory
from framesmith_backends.render.llvm.runtime import POOL
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters, signature
from framesmith_backends.target import Processor

BLOCK = *ROWS, "ptr memory"
#: No key is hidden by its number.
FAR = 1 << 40


def render_fused_attention(
    item: FusedAttention, name: str, target: Processor, strict: bool
) -> tuple[str, Extent, dict[str, None]]:
    """The functions of an item of a run, whose own is `void name(ptr buffers, i64 begin, i64 end)` over its blocks of
    rows; its extent; and what a module has of it besides, once for all of its items.
    """
    shape = shape_of(target)
    made = _Item(item, name, target, shape, scores_of(item))
    widths = block_widths(shape, item.rows.size)
    parts = [made.blocks(widths), *map(made.block, widths), *made.functions(strict)]
    declared = dict.fromkeys(POOL) | shared_functions(item, widths, target)
    for one in parts:
        declared |= one.declared
    blocks = -(-item.rows.size // (shape.most * shape.lanes))
    points = numel((*item.queries.shape, item.columns.size))
    extent = Extent(shape.lanes, True, False, item.batch.size * blocks, 2 * points)
    return "\n\n".join(one.text for one in parts), extent, declared


def shared_functions(item: FusedAttention, widths: tuple[int, ...], target: Processor) -> dict[str, None]:
    """The functions that items of a module share, and what they declare; each text once."""
    shape, declared = shape_of(target), dict[str, None]()

    def writer() -> Writer:
        return Writer(vectors=target.vectors, declared=declared)

    texts = [pack(writer(), shape.lanes), write_results(writer(), shape, item.dtype, item.zero_masked_rows)]
    texts += [copy_rows(writer(), shape, kind) for kind in dict.fromkeys(kind for _, kind in item.operands)]
    for vectors in widths:
        heights = shape.heights[vectors]
        texts += [scores_tile(writer(), shape, vectors, rows) for rows in heights]
        texts += [values_tile(writer(), shape, vectors, rows) for rows in heights]
        texts.append(softmax(writer(), shape, vectors))
    return declared | dict.fromkeys(texts)


_COPY = "ptr source", "i64 rows", "i64 row", "i64 step", "i64 length", "ptr to"


def copy_rows(w: Writer, shape: Shape, kind: str) -> str:
    """Copy rows of so many elements, `step` from each other, to rows of float32 that lie one behind the other."""
    p, memory, lanes = parameters(*_COPY), DTYPES[kind].memory, shape.lanes

    def widened(raw: Value) -> Value:
        return emit_cast(w, from_memory(w, raw, kind), kind, "f32")

    beside = w.compare("eq", p["step"], 1)
    whole = w.select(beside, w.binary("and", p["length"], -lanes), ZERO)
    with w.loop(ZERO, p["rows"]) as k:
        source, goal = w.at(p["source"], w.mul(k, p["row"]), memory), w.at(p["to"], w.mul(k, p["length"]))
        with w.loop(ZERO, whole, lanes) as d:
            raw = w.load(w.at(source, d, memory), memory, lanes, DTYPES[kind].itemsize)
            w.store(widened(raw), w.at(goal, d))
        with w.loop(whole, p["length"]) as d:
            raw = w.load(w.at(source, w.mul(d, p["step"]), memory), memory, 1, DTYPES[kind].itemsize)
            w.store(widened(raw), w.at(goal, d))
    return w.function(f"define internal void @fs.rows.{kind}({signature(_COPY)})")


@dataclass(frozen=True, slots=True)
class _Item:
    """The functions of one item, their names beginning with its own."""

    item: FusedAttention
    name: str
    target: Processor
    shape: Shape
    scores: Scores

    def functions(self, strict: bool) -> list[Written]:
        """Those of its expressions."""
        item, scores, made = self.item, self.scores, list[Written]()
        for what, value in (("some", scores.some), ("all", scores.all)):
            if value is not None and (what == "all" or scores.seen is not None):
                made.append(scores_function(item, f"{self.name}.{what}", value, self.target, strict))
        if scores.seen is not None:
            made.append(seen_function(item, f"{self.name}.seen", scores.seen, self.target, strict))
        if item.kept:
            made.append(kept_function(item, f"{self.name}.kept", self.target, strict))
        return made

    def writer(self) -> Writer:
        return Writer(vectors=self.target.vectors)

    def known(self, w: Writer) -> dict[Symbol, Value]:
        """The symbols' values, behind the buffers' addresses."""
        at = len(self.item.params)
        numbers = [one for one in self.item.numbers if isinstance(one, Symbol)]
        slots = [at + self.item.numbers.index(one) for one in numbers]
        buffers = Value("%buffers", "ptr")
        return {one: w.load(w.at(buffers, k, "i64"), "i64", align=8) for one, k in zip(numbers, slots, strict=True)}

    def buffer(self, w: Writer, name: str) -> Value:
        at = [param.name for param in self.item.params].index(name)
        return w.read(w.at(Value("%buffers", "ptr"), at, "ptr"), "ptr")

    def blocks(self, widths: tuple[int, ...]) -> Written:
        """Some of the blocks of rows, by one thread."""
        w, shape, item = self.writer(), self.shape, self.item
        known = self.known(w)
        rows = emit_size(w, item.rows.size, known)
        memory = w.emit(f"call ptr @fs.take(i64 {shape.bytes})", "ptr")
        missing = w.is_null(memory)
        with w.when(missing):
            failed = w.at(Value("%buffers", "ptr"), len(item.params) + len(item.numbers), "ptr")
            w.store(constant(1, "i8"), w.read(failed, "ptr"), 1)
        vectors = w.binary("udiv", w.add(rows, shape.lanes - 1), shape.lanes)
        blocks = w.binary("udiv", w.add(vectors, shape.most - 1), shape.most)
        with w.loop(BEGIN, w.select(missing, BEGIN, END)) as task:
            batch, turn = w.binary("udiv", task, blocks), w.binary("urem", task, blocks)
            # From both ends in turn: causal rows see more columns the later they are, and threads get equal work.
            half, odd = w.binary("lshr", turn, 1), w.binary("and", turn, 1)
            which = w.select(w.compare("ne", odd, 0), w.sub(w.sub(blocks, 1), half), half)
            each, more = w.binary("udiv", vectors, blocks), w.binary("urem", vectors, blocks)
            first = w.mul(w.add(w.mul(which, each), w.least(which, more)), shape.lanes)
            wide = w.add(each, w.convert("zext", w.compare("ult", which, more), "i64"))
            end = w.least(w.add(first, w.mul(wide, shape.lanes)), rows)
            given = {"buffers": Value("%buffers", "ptr"), "batch": batch, "first": first, "end": end, "memory": memory}
            for size in widths:
                with w.when(w.compare("eq", wide, size)):
                    call(w, f"@{self.name}.block.{size}", BLOCK, given)
        with w.when(w.negated(missing)):
            w.call("@fs.give", memory)
        text = w.function(f"define internal void @{self.name}(ptr %buffers, i64 %begin, i64 %end)")
        return Written(text, w.declared)

    def block(self, vectors: int) -> Written:
        """The results of a block of so many vectors of rows."""
        w, item, shape = self.writer(), self.item, self.shape
        p, known, width = parameters(*BLOCK), self.known(w), vectors * shape.lanes
        at = {name: w.at(p["memory"], offset) for name, offset in shape.offsets.items()}
        depth, length, columns = (emit_size(w, n, known) for n in (*item.depths, item.columns.size))
        count = w.sub(p["end"], p["first"])
        begin_rows(w, shape, vectors, at)
        queries = _Rows(w, self.buffer(w, item.queries.source), item.queries, item.factors, known, at["rows"])
        keys = _Rows(w, self.buffer(w, item.keys.source), item.keys.transposed, item.factors, known, at["rows"])
        values = _Rows(w, self.buffer(w, item.values.source), item.values, item.dtype, known, at["rows"])
        source, step = queries.read(p["batch"], p["first"], count, depth)
        w.call("@fs.pack", source, step, constant(1, "i64"), count, depth, at["queries"], constant(width, "i64"))
        later = w.cell(constant(False, "i1"))
        with w.loop(ZERO, columns, KEYS) as start:
            stop = w.least(w.add(start, KEYS), columns)
            number = w.sub(stop, start)
            here = {**p, "column": start, "stop": stop, "scores": at["scores"], "width": constant(width, "i64")}
            with self._where_seen(w, here) as seen:
                key, step = keys.read(p["batch"], start, number, depth)
                for first, rows in in_heights(w, number, shape.heights[vectors]):
                    scores, scale = w.at(at["scores"], w.mul(first, width)), constant(self.scores.scale, "float")
                    given = (at["queries"], w.at(key, w.mul(first, step)), step, depth, scores, scale)
                    w.call(f"@fs.scores.{vectors}.{rows}", *given, constant(False, "i1"))
                self._change_scores(w, here, seen)
                state = (at["greatest"], at["total"], at["factor"])
                w.call(f"@fs.softmax.{vectors}", at["scores"], number, *state, constant(FAR, "i64"))
                value, step = values.read(p["batch"], start, number, length)
                before = w.read(later, "i1")
                for first, rows in in_heights(w, length, shape.heights[vectors]):
                    sums = w.at(at["sums"], w.mul(first, width))
                    given = (at["scores"], w.at(value, first), step, number, sums, at["factor"])
                    w.call(f"@fs.values.{vectors}.{rows}", *given, before)
                w.store(constant(True, "i1"), later, 0)
        with w.when(w.negated(w.read(later, "i1"))), w.loop(ZERO, w.mul(length, width), shape.lanes) as k:
            w.store(constant(0.0, "float", shape.lanes), w.at(at["sums"], k))
        if item.kept:
            call(w, f"@{self.name}.kept", KEPT, {**at, **p})
        row = w.add(w.mul(p["batch"], emit_size(w, item.rows.size, known)), p["first"])
        result = w.at(self.buffer(w, item.result), w.mul(row, length), DTYPES[item.dtype].memory)
        results = f"@fs.results.{item.dtype}.{int(item.zero_masked_rows)}"
        w.call(results, p["memory"], count, length, constant(width, "i64"), result)
        text = w.function(f"define internal void @{self.name}.block.{vectors}({signature(BLOCK)})")
        return Written(text, w.declared)

    @contextmanager
    def _where_seen(self, w: Writer, here: dict[str, Value]) -> Iterator[Value | None]:
        """A context of code that runs where anything of the block is seen; yields how much is."""
        if self.scores.seen is None:
            yield None
            return
        given = ", ".join(here[one.split()[1]].typed for one in SEEN)
        seen = w.emit(f"call i32 @{self.name}.seen({given})", "i32")
        with w.when(w.compare("ne", seen, NOTHING)):
            yield seen

    def _change_scores(self, w: Writer, here: dict[str, Value], seen: Value | None) -> None:
        """Compute the scores of the matmul that is in their place."""
        if seen is None:
            if self.scores.all is not None:
                call(w, f"@{self.name}.all", SCORES, here)
            return
        everything = w.compare("eq", seen, ALL)
        with w.when(w.negated(everything)):
            call(w, f"@{self.name}.some", SCORES, here)
        if self.scores.all is not None:
            with w.when(everything):
                call(w, f"@{self.name}.all", SCORES, here)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of an operand, a view of three dimensions, as the tiles read them."""

    w: Writer
    buffer: Value
    view: BufferView
    kind: str
    known: dict[Symbol, Value]
    room: Value

    def size(self, size: Size) -> Value:
        return emit_size(self.w, size, self.known)

    def read(self, batch: Value, first: Value, count: Value, length: Value) -> tuple[Value, Value]:
        """The address of `count` rows of float32 from the `first` on, and their stride."""
        w, (head, row, step) = self.w, map(self.size, self.view.strides)
        start = w.add(self.size(self.view.offset), w.add(w.mul(batch, head), w.mul(first, row)))
        source = w.at(self.buffer, start, DTYPES[self.kind].memory)
        if self.kind == "f32" and self.view.strides[2] == 1:
            return source, row
        w.call(f"@fs.rows.{self.kind}", source, count, row, step, length, self.room)
        return self.room, length

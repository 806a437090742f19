"""Functions of a block of scores, given as expressions over the loops of the matmul of queries and keys.

Note [Score expressions]: the lanes are rows. What is known of a row, such as the slope of its head, is computed once
before the loop over the block's columns. Where the mask depends on indices alone, it is asked of a block first: a block
of which nothing is seen is passed by, and of one that is seen as a whole the scores are computed without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from framesmith_backends.ir.expr import Const, Expr, Op, Ref, children, transform, walk
from framesmith_backends.ir.fused.attention import FINITE_TOTAL, FULLY_MASKED, LARGEST, LOWEST, TOTAL, FusedAttention
from framesmith_backends.ir.fused.matmul import ACCUMULATOR
from framesmith_backends.ir.kernel import Kernel, RowPass, Store
from framesmith_backends.ir.symbolic import index
from framesmith_backends.render.llvm.builder import Builder, Value, constant
from framesmith_backends.render.llvm.loops.emit import emit, emit_store
from framesmith_backends.render.llvm.loops.kernel import open_buffers
from framesmith_backends.render.llvm.loops.nest import lane_blocks, opened_loop
from framesmith_backends.render.llvm.loops.state import Rendering
from framesmith_backends.render.nested_lines import flat
from framesmith_backends.target import Processor

MATMUL = Ref(ACCUMULATOR, "f32")
#: The parameters of a function of a block: the item's buffers, the number of the matmul, the block's rows.
ROWS = "ptr buffers", "i64 batch", "i64 first", "i64 end"
#: The block's columns besides, and its scores, of which a column takes `width`.
SCORES = *ROWS, "i64 column", "i64 stop", "ptr scores", "i64 width"
SEEN = SCORES[:-2]
KEPT = *ROWS, "ptr greatest", "ptr total"
#: Answers of a mask: nothing of a block is seen, or all of it.
NOTHING, ALL = 0, 2


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores as `scale` times the matmul, and what is computed of that: where anything is hidden, and where nothing is.

    A part that is the matmul itself is None. `seen` is the mask where it is asked for, else None.
    """

    scale: float
    some: Expr | None
    all: Expr | None
    seen: Expr | None


def scores_of(item: FusedAttention) -> Scores:
    """The item's scores in parts."""
    scale, value = _scaled(item.scores)
    seen = item.seen
    whole = value.args[1] if seen is not None and isinstance(value, Op) else value
    some, every = (None if one == MATMUL else one for one in (value, whole))
    return Scores(scale, some, every, seen)


def _scaled(scores: Expr) -> tuple[float, Expr]:
    """The number that all reads of the matmul are multiplied by, and the scores without it."""
    scaled, *others = [node for node in walk(scores) if MATMUL in children(node)] or [scores]
    if others or not isinstance(scaled, Op) or scaled.name != "mul":
        return 1.0, scores
    factors = [one for one in scaled.args if isinstance(one, Const)]
    if len(factors) != 1:
        return 1.0, scores
    return float(factors[0].value), transform(scores, lambda e: MATMUL if e == scaled else None)


def scores_function(item: FusedAttention, name: str, value: Expr, target: Processor, strict: bool) -> Written:
    """`void name(SCORES)`: the value in the place of each score of a block."""
    f = _Function(item, value, target, strict)
    r = f.r

    def inside() -> None:
        shift = r.b.sub(r.variables[item.rows], Value("%first", "i64"))
        with opened_loop(r, Value("%column", "i64"), Value("%stop", "i64"), 1, item.columns):
            down = r.b.mul(r.b.sub(r.variables[item.columns], Value("%column", "i64")), Value("%width", "i64"))
            place = r.b.emit(f"getelementptr float, ptr %scores, {r.b.add(down, shift).typed}", "ptr")
            vector = Value("", "float", r.lanes).type
            r.refs[ACCUMULATOR] = r.b.emit(f"load {vector}, {place.typed}, align 4", "float", r.lanes)
            r.ref_level = len(r.levels) - 1
            r.b.line(f"store {r.b.splat(emit(r, value), r.lanes).typed}, {place.typed}, align 4")

    return f.written(name, SCORES, inside)


def seen_function(item: FusedAttention, name: str, seen: Expr, target: Processor, strict: bool) -> Written:
    """`i32 name(SEEN)`: whether nothing of a block is seen, some of it or all."""
    f = _Function(item, seen, target, strict)
    r = f.r
    flags = Value("", "i1", r.lanes).type
    some, every = r.room(flags), r.room(flags)
    starts = (constant(value, "i1", r.lanes).typed for value in (False, True))
    r.entry.lines += [f"store {start}, {cell.typed}" for start, cell in zip(starts, (some, every), strict=True)]

    def joined(op: str, cell: Value, shown: Value) -> None:
        before = r.b.emit(f"load {flags}, {cell.typed}", "i1", r.lanes)
        r.b.line(f"store {r.b.binary(op, before, shown).typed}, {cell.typed}")

    def inside() -> None:
        with opened_loop(r, Value("%column", "i64"), Value("%stop", "i64"), 1, item.columns):
            shown = r.b.splat(emit(r, seen), r.lanes)
            inner = shown if r.mask is None else r.b.binary("and", shown, r.mask)
            outer = shown if r.mask is None else r.b.binary("or", shown, r.b.binary("xor", r.mask, True))
            joined("or", some, inner)
            joined("and", every, outer)

    def result() -> str:
        words = []
        for cell, predicate, bound in ((some, "ne", 0), (every, "eq", -1)):
            found = r.b.emit(f"load {flags}, {cell.typed}", "i1", r.lanes)
            packed = r.b.emit(f"bitcast {found.typed} to i{r.lanes}", f"i{r.lanes}")
            words.append(r.b.convert("zext", r.b.compare(predicate, packed, bound), "i32"))
        return f"ret {r.b.add(*words).typed}"

    return f.written(name, SEEN, inside, "i32", result)


def kept_function(item: FusedAttention, name: str, target: Processor, strict: bool) -> Written:
    """`void name(KEPT)`: stores what is kept of the rows, given their largest scores and their totals."""
    f = _Function(item, item.kept[0].value, target, strict)
    r = f.r

    def row(name: str, shift: Value) -> Value:
        place = r.b.emit(f"getelementptr float, ptr %{name}, {shift.typed}", "ptr")
        return r.b.emit(f"load {Value('', 'float', r.lanes).type}, {place.typed}, align 4", "float", r.lanes)

    def inside() -> None:
        shift = r.b.sub(r.variables[item.rows], Value("%first", "i64"))
        top, total = row("greatest", shift), row("total", shift)
        empty = r.b.compare("oeq", total, 0.0)
        infinite = r.b.compare("oeq", top, -LOWEST)
        r.refs |= {
            LARGEST: top, TOTAL: total,
            FULLY_MASKED: r.b.binary("and", r.b.compare("oeq", top, LOWEST), empty),
            FINITE_TOTAL: r.b.select(infinite, r.b.number(-LOWEST, total), total),
        }  # fmt: skip
        r.ref_level = len(r.levels) - 1
        for one in item.kept:
            emit_store(r, one)

    return f.written(name, KEPT, inside)


@dataclass(frozen=True, slots=True)
class Written:
    """A function's text, and what it declares."""

    text: str
    declared: dict[str, None]


class _Function:
    """A function over the rows of a block, a vector of them at a time."""

    def __init__(self, item: FusedAttention, value: Expr, target: Processor, strict: bool) -> None:
        stored = Store(item.result, index.ZERO, value)
        kernel = Kernel(
            item.name, item.params, (item.batch, item.rows), (item.columns,), item.rows,
            (RowPass((), (), (stored,)),), numbers=item.numbers,
        )  # fmt: skip
        builder = Builder(flags="" if strict else " contract", vectors=target.vectors)
        # No index knows of a single row.
        lanes = 1 if item.rows.size == 1 else target.float_lanes
        self.item, self.r = item, Rendering(kernel, lanes, builder, target)
        self.r.b.out = self.r.entry.lines
        open_buffers(self.r)

    def written(
        self, name: str, parameters: Iterable[str], inside: Callable[[], None], kind: str = "void",
        result: Callable[[], str] = lambda: "ret void",
    ) -> Written:  # fmt: skip
        """The function that does `inside` for each vector of rows, and returns `result`."""
        r, body = self.r, list[object]()
        r.enter(body, self.item.batch, Value("%batch", "i64"))
        lane_blocks(r, self.item.rows, Value("%first", "i64"), Value("%end", "i64"), inside)
        last = result()
        lines = "\n".join(line if line.endswith(":") else f"  {line}" for line in flat([r.entry.lines, body, [last]]))
        taken = ", ".join(one.replace(" ", " %") for one in parameters)
        return Written(f"define internal {kind} @{name}({taken}) #0 {{\nentry:\n{lines}\n}}", r.b.declared)

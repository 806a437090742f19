"""One long line sorted by all threads, by digits, see `sorts`.

Note [Long lines]: each thread has a piece of the items as they lie now, and counts the digits of it. From where the
items of one piece with one digit go on is how many there are of lower digits, and of this one in pieces before it; so
that the pieces are dealt out side by side, and yet in their order. Pieces are counted again before each digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from framesmith_backends.native_ops.sorts.render import BITS, ITEMS, JOB, Digits, Items, Line, Sort
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.runtime import RUNTIME, attributes
from framesmith_backends.render.llvm.writer import ZERO, Writer
from framesmith_backends.target import Processor

#: Behind a job's words: which digit the items are dealt by, whether they lie in the second arrays, and whether they
#: have been dealt at all.
STATE = ("digit", "turned", "dealt")
LONG_JOB = (*JOB, *STATE)
#: What all threads do at the same time, each for its pieces.
PHASES = ("take", "recount", "deal", "deal_out", "write")


def render_long_sort(sort: Sort, target: Processor) -> str:
    """A module with `void fs_sort(ptr job, i64 pieces, i32 threads)`, which sorts one line; `shares` are the pieces.

    Its counts lie in scratch behind the items.
    """
    declarations: dict[str, None] = {}

    def writer() -> _LongSort:
        return _LongSort(sort, Writer(declared=declarations), target)

    phases = [writer().phase(name) for name in PHASES]
    functions = [*phases, writer().join(), writer().all_phases()]
    return "\n\n".join([*declarations, RUNTIME, *functions, attributes(target)])


def counts_bytes(sort: Sort) -> int:
    """Bytes of the counts of one piece."""
    return 4 * sort.digits << BITS


class _LongSort(Digits):
    """Writes one of the functions."""

    def __init__(self, sort: Sort, w: Writer, target: Processor) -> None:
        super().__init__(sort, w, target)
        self.scratch = self.job["scratch"]
        self.words = {name: w.at(Value("%job", "ptr"), len(JOB) + k, "i64") for k, name in enumerate(STATE)}
        self.all_counts = self.slot(ITEMS)

    def read_word(self, name: str) -> Value:
        return self.w.load(self.words[name], "i64", align=8)

    def counts_of(self, piece: Value) -> Value:
        return self.w.at(self.all_counts, self.w.mul(piece, counts_bytes(self.sort)), "i8")

    def items(self, turned: Value) -> Items:
        """The keys and the places, in the first arrays or in the second ones."""
        return self.slot(turned), self.slot(self.w.add(turned, 2))

    @contextmanager
    def pieces(self) -> Iterator[tuple[Value, Value]]:
        """The first item of each piece, and the one behind its last."""
        w, job = self.w, self.job
        with w.loop(Value("%begin", "i64"), Value("%end", "i64")) as piece:
            self.counts = self.counts_of(piece)
            first, last = (w.binary("udiv", w.mul(k, self.count), job["shares"]) for k in (piece, w.add(piece, 1)))
            yield first, last

    def phase(self, name: str) -> str:
        w, job, sort = self.w, self.job, self.sort
        line = Line(job["source"], job["values"], job["places"], ZERO)
        with self.pieces() as (first, last):
            turned = self.read_word("turned")
            read, which = self.items(turned), self.read_word("digit")
            if name == "take":
                self.clear(self.counts, counts_bytes(sort))
                self.take(line, read, first, last)
            elif name == "recount":
                base = w.binary("shl", which, BITS)
                self.clear(self.counter(base, ZERO), 4 << BITS)
                with w.loop(first, last) as at:
                    self.count_one(base, self.digit(self.item(read, at)[0], which))
            elif name == "deal":
                self.deal(read, self.items(w.binary("xor", turned, 1)), which, first, last)
            elif name == "deal_out":
                self.deal_out(line, read, which, first, last)
            else:
                self.write(line, read, first, last)
        return w.function(f"define internal void @fs.{name}(ptr %job, i64 %begin, i64 %end)")

    def join(self) -> str:
        """From where each piece goes on with each digit; nothing is done, and said so, if all items have the same."""
        w, job = self.w, self.job
        base = w.binary("shl", self.read_word("digit"), BITS)
        key, _ = self.item(self.items(self.read_word("turned")), ZERO)
        digit, same = self.digit(key, self.read_word("digit")), w.cell(ZERO)
        with w.loop(ZERO, job["shares"]) as piece:
            self.counts = self.counts_of(piece)
            found = w.load(self.counter(base, digit), "i32")
            w.store(w.add(w.read(same, "i64"), w.convert("zext", found, "i64")), same, 0)
        differs = w.compare("ne", w.read(same, "i64"), self.count)
        with w.when(differs):
            total = w.cell(constant(0, "i32"))
            with w.loop(ZERO, constant(1 << BITS, "i64")) as one, w.loop(ZERO, job["shares"]) as piece:
                self.counts = self.counts_of(piece)
                counter, before = self.counter(base, one), w.read(total, "i32")
                w.store(w.add(before, w.load(counter, "i32")), total, 0)
                w.store(before, counter)
        return w.function("define internal i1 @fs.join(ptr %job)", f"ret {differs.typed}")

    def all_phases(self) -> str:
        w = self.w
        self.together("take")
        with w.loop(ZERO, constant(self.sort.digits - 1, "i64")) as which, w.when(self.counted(which)):
            self.together("deal")
            w.store(w.binary("xor", self.read_word("turned"), 1), self.words["turned"], 8)
            w.store(constant(1, "i64"), self.words["dealt"], 8)
        differs = self.counted(constant(self.sort.digits - 1, "i64"))
        with w.when(differs):
            self.together("deal_out")
        with w.when(w.binary("xor", differs, True)):
            self.together("write")
        return w.function("define void @fs_sort(ptr %job, i64 %extent, i32 %threads)")

    def counted(self, which: Value) -> Value:
        """Count a digit: whether not all items have the same one."""
        w = self.w
        w.store(which, self.words["digit"], 8)
        with w.when(w.compare("ne", self.read_word("dealt"), 0)):
            self.together("recount")
        return w.emit("call i1 @fs.join(ptr %job)", "i1")

    def together(self, phase: str) -> None:
        self.w.line(f"call void @fs.parallel(ptr @fs.{phase}, ptr %job, i64 %extent, i32 %threads)")

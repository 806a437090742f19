"""One long line sorted by all threads, by digits, see `render`.

Note [Long lines]: each thread has a chunk of the items in their present order, and counts its digits. The items of a
chunk with one digit go behind those of lower digits, and those with this one in chunks before it, so that chunks are
distributed side by side, and yet stably. Chunks are counted again before each digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from framesmith_backends.native_ops.job import BEGIN, END, Job, OperatorModule, threaded
from framesmith_backends.native_ops.sorts.render import BITS, ITEMS, JOB, Digits, Items, Line, Sort
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.writer import ZERO, Writer
from framesmith_backends.target import Processor

#: After a job's words: the digit of the pass, whether items are in the second arrays, and whether there was a pass.
LONG_JOB = Job(*(f"{kind} {name}" for name, kind in JOB.kinds.items()), "i64 digit", "i64 second", "i64 passed")
#: The phases: functions that all threads run together, each for its chunks.
PHASES = ("take", "recount", "deal", "deal_out", "write")


def render_long_sort(sort: Sort, target: Processor) -> str:
    """A module with `void fs_sort(ptr job, i64 chunks, i32 threads)`, which sorts one line; `shares` are the chunks.

    Its counts are in scratch after the items.
    """
    module = OperatorModule(target)

    def writer() -> _LongSort:
        return _LongSort(sort, module.writer(), target)

    phases = [writer().phase(name) for name in PHASES]
    functions = [*phases, writer().join(), writer().all_phases()]
    return module.text(*functions)


def counts_bytes(sort: Sort) -> int:
    """Bytes of the counts of one chunk."""
    return 4 * sort.digits << BITS


class _LongSort(Digits):
    """Writes one of the functions."""

    def __init__(self, sort: Sort, w: Writer, target: Processor) -> None:
        super().__init__(sort, w, target)
        self.scratch = self.job["scratch"]
        self.words = {name: LONG_JOB.at(w, name) for name in ("digit", "second", "passed")}
        self.all_counts = self.slot(ITEMS)

    def read_word(self, name: str) -> Value:
        return self.w.load(self.words[name], "i64", align=8)

    def counts_of(self, chunk: Value) -> Value:
        return self.w.at(self.all_counts, self.w.mul(chunk, counts_bytes(self.sort)), "i8")

    def items(self, second: Value) -> Items:
        """The keys and the indices, in the first arrays or in the second ones."""
        return self.slot(second), self.slot(self.w.add(second, 2))

    @contextmanager
    def chunks(self) -> Iterator[tuple[Value, Value]]:
        """The first item of each chunk, and the one after its last."""
        w, job = self.w, self.job
        with w.loop(BEGIN, END) as chunk:
            self.counts = self.counts_of(chunk)
            first, last = (w.binary("udiv", w.mul(k, self.count), job["shares"]) for k in (chunk, w.add(chunk, 1)))
            yield first, last

    def phase(self, name: str) -> str:
        w, job, sort = self.w, self.job, self.sort
        line = Line(job["source"], job["values"], job["indices"], ZERO)
        with self.chunks() as (first, last):
            second = self.read_word("second")
            read, which = self.items(second), self.read_word("digit")
            if name == "take":
                self.clear(self.counts, counts_bytes(sort))
                self.take(line, read, first, last)
            elif name == "recount":
                base = w.binary("shl", which, BITS)
                self.clear(self.counter(base, ZERO), 4 << BITS)
                with w.loop(first, last) as at:
                    self.count_one(base, self.digit(self.item(read, at)[0], which))
            elif name == "deal":
                self.deal(read, self.items(w.binary("xor", second, 1)), which, first, last)
            elif name == "deal_out":
                self.deal(read, line, which, first, last)
            else:
                self.write(line, read, first, last)
        return threaded(w, f"fs.{name}")

    def join(self) -> str:
        """Replace counts by where each chunk goes on with each digit; returns whether items differ in the digit."""
        w, job = self.w, self.job
        base = w.binary("shl", self.read_word("digit"), BITS)
        key, _ = self.item(self.items(self.read_word("second")), ZERO)
        digit, same = self.digit(key, self.read_word("digit")), w.cell(ZERO)
        with w.loop(ZERO, job["shares"]) as chunk:
            self.counts = self.counts_of(chunk)
            found = w.load(self.counter(base, digit), "i32")
            w.store(w.add(w.read(same, "i64"), w.convert("zext", found, "i64")), same, 0)
        differs = w.compare("ne", w.read(same, "i64"), self.count)
        with w.when(differs):
            total = w.cell(constant(0, "i32"))
            with w.loop(ZERO, constant(1 << BITS, "i64")) as one, w.loop(ZERO, job["shares"]) as chunk:
                self.counts = self.counts_of(chunk)
                counter, before = self.counter(base, one), w.read(total, "i32")
                w.store(w.add(before, w.load(counter, "i32")), total, 0)
                w.store(before, counter)
        return w.function("define internal i1 @fs.join(ptr %job)", f"ret {differs.typed}")

    def all_phases(self) -> str:
        w = self.w
        self.together("take")
        with w.loop(ZERO, constant(self.sort.digits - 1, "i64")) as which, w.when(self.counted(which)):
            self.together("deal")
            w.store(w.binary("xor", self.read_word("second"), 1), self.words["second"], 8)
            w.store(constant(1, "i64"), self.words["passed"], 8)
        differs = self.counted(constant(self.sort.digits - 1, "i64"))
        with w.when(differs):
            self.together("deal_out")
        with w.when(w.negated(differs)):
            self.together("write")
        return w.function("define void @fs_sort(ptr %job, i64 %extent, i32 %threads)")

    def counted(self, which: Value) -> Value:
        """Count a digit: whether not all items have the same one."""
        w = self.w
        w.store(which, self.words["digit"], 8)
        with w.when(w.compare("ne", self.read_word("passed"), 0)):
            self.together("recount")
        return w.emit("call i1 @fs.join(ptr %job)", "i1")

    def together(self, phase: str) -> None:
        self.w.line(f"call void @fs.parallel(ptr @fs.{phase}, ptr %job, i64 %extent, i32 %threads)")

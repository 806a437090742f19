"""Stable sorts as LLVM IR: a module for each `Sort`.

Note [Keys]: the key of an element is an unsigned integer, ordered as elements are: the bits of floats, those of
negative numbers inverted; both zeros have one key, and all NaNs the largest. Descending, all bits are inverted, so that
equal elements stay in their order. An item is a key and the index of its element.

Note [Digits]: a radix sort, least significant digit first; each pass is stable. The counts of all digits are taken
beforehand; a digit that is the same in all keys is skipped.

Note [Ranks]: in a short line, the sorted position of an element is the number of lesser keys, and of equal ones before
it, counted for the lanes of a vector at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.native_ops.job import BEGIN, END, Job, OperatorModule, array, entry, lane_numbers, threaded
from framesmith_backends.render.llvm.builder import Value, constant, element_bytes
from framesmith_backends.render.llvm.writer import ZERO, Writer
from framesmith_backends.target import Processor

#: `tasks` are lines, or up to `GROUP` of the `inner` lines side by side, of `count` elements; each of the threads'
#: `shares` of them has a block of `SLOTS` arrays in `scratch`, of `room` bytes. `ties` has a byte for each line:
#: whether the order of equal elements shows in the results.
JOB = Job("ptr source", "ptr values", "ptr indices", "ptr ties", "ptr scratch", "i64 tasks", "i64 shares", "i64 count",
          "i64 inner", "i64 room")  # fmt: skip
#: Lines side by side that are sorted together. The arrays, of 64-bit words: keys, the output of a pass, the indices of
#: both; then elements, sorted ones and their indices, for lines that are side by side in memory.
GROUP = 8
ITEMS = 4
SLOTS = ITEMS + 3 * GROUP
SLOT = 8
#: Bits of a digit.
BITS = 8
#: After so many more lines with ties than without, the rest is left to ATen.
MOST_TIES = 8


class Sort(NamedTuple):
    """A sort of elements of a type of `ir.dtypes`, of short lines if `ranks`, and its results. See `JOB`."""

    source: str
    descending: bool
    values: bool
    indices: bool
    ties: bool
    across: bool
    ranks: bool

    @property
    def memory(self) -> str:
        """The type of elements and of keys: integers, so that no bit changes."""
        return f"i{8 * DTYPES[self.source].itemsize}"

    @property
    def key(self) -> str:
        """The type of keys in memory."""
        return "i64" if self.memory == "i64" else "i32"

    @property
    def is_word(self) -> bool:
        """Whether an item is one word of 64 bits."""
        return self.key == "i32" and not self.ranks

    @property
    def digits(self) -> int:
        return int(self.memory[1:]) // BITS


def arrays(sort: Sort) -> int:
    """Arrays in the scratch of a share."""
    return SLOTS if sort.across else ITEMS


def render_sort(sort: Sort, target: Processor) -> str:
    """A module with `void fs_sort(ptr job, i64 shares, i32 threads)`."""
    module = OperatorModule(target)
    lines = (Ranks if sort.ranks else Digits)(sort, module.writer(), target)
    body = _Shares(lines).function()
    return module.text(body, entry("fs_sort", {"fs.part": "extent"}))


#: The addresses of keys, or of items that are one word, and of the indices of others.
Items = tuple[Value, Value]


class Line(NamedTuple):
    """The addresses of contiguous elements and of their results, and the line's number."""

    source: Value
    values: Value
    indices: Value
    number: Value


class Elements:
    """Writes the parts that sorts by digits and by ranks share, in a function that has a job."""

    def __init__(self, sort: Sort, w: Writer) -> None:
        self.sort, self.w = sort, w
        self.job = JOB.load(w)
        self.count = self.job["count"]
        self.scratch = ZERO

    def slot(self, which: int | Value) -> Value:
        """An array of the share's scratch."""
        w = self.w
        slot = which if isinstance(which, Value) else constant(which, "i64")
        return w.at(self.scratch, w.mul(slot, self.job["room"]), "i8")

    # Keys: see Note [Keys].

    def key_of(self, element: Value) -> Value:
        w, sort = self.w, self.sort
        bits, key = int(sort.memory[1:]), element
        sign = -1 << (bits - 1)
        if DTYPES[sort.source].kind == "f":
            infinity = (1 << (bits - 1)) - (1 << DTYPES[sort.source].digits)
            key = w.binary("xor", element, w.binary("or", w.binary("ashr", element, bits - 1), sign))
            key = w.select(w.compare("eq", element, sign), element, key)
            is_nan = w.compare("ugt", w.binary("and", element, ~sign), infinity)
            key = w.select(is_nan, w.number(-1, key), key)
        elif DTYPES[sort.source].kind == "i":
            key = w.binary("xor", element, sign)
        if sort.descending:
            key = w.binary("xor", key, -1)
        return key if sort.memory == sort.key else w.convert("zext", key, sort.key)

    def as_key(self, number: Value) -> Value:
        """A 64-bit number as one of the keys' type."""
        return number if self.sort.key == "i64" else self.w.convert("trunc", number, self.sort.key)

    def element(self, line: Line, at: Value, lanes: int = 1) -> Value:
        return self.w.load(self.w.at(line.source, at, self.sort.memory), self.sort.memory, lanes, 1)

    # Items: one word, or a key and an index.

    def put(self, key: Value, index: Value, items: Items, at: Value) -> None:
        w = self.w
        if self.sort.is_word:
            word = w.binary("or", w.binary("shl", w.convert("zext", key, "i64"), 32), w.convert("zext", index, "i64"))
            w.store(word, w.at(items[0], at, "i64"), 8)
        else:
            w.store(key, w.at(items[0], at, self.sort.key), element_bytes(self.sort.key))
            w.store(index, w.at(items[1], at, "i32"), 4)

    def item(self, items: Items, at: Value) -> tuple[Value, Value]:
        """A key and an index."""
        w = self.w
        if self.sort.is_word:
            word = w.load(w.at(items[0], at, "i64"), "i64", align=8)
            return w.convert("trunc", w.binary("lshr", word, 32), "i32"), w.convert("trunc", word, "i32")
        key = w.load(w.at(items[0], at, self.sort.key), self.sort.key, align=element_bytes(self.sort.key))
        return key, w.load(w.at(items[1], at, "i32"), "i32")

    # Results.

    def write(self, line: Line, items: Items, first: Value, last: Value) -> None:
        """Write the results of sorted items."""
        w = self.w
        with w.loop(first, last) as at:
            _, index = self.item(items, at)
            self.write_one(line, w.convert("zext", index, "i64"), at)

    def write_one(self, line: Line, index: Value, at: Value) -> None:
        """Write the results of the element with this index."""
        w, sort = self.w, self.sort
        if sort.values:
            w.store(self.element(line, index), w.at(line.values, at, sort.memory), 1)
        if sort.indices:
            w.store(index, w.at(line.indices, at, "i64"), 8)

    def ties(self, line: Line, items: Items) -> Value:
        """Store and return a byte: whether two neighbours with one key differ in what was written, index or bits."""
        w, sort = self.w, self.sort
        found = w.cell(constant(0, "i8"))
        with w.loop(ZERO, w.sub(self.count, 1)) as at:
            (key, index), (next_key, next_index) = self.item(items, at), self.item(items, w.add(at, 1))
            same = w.compare("eq", key, next_key)
            if not sort.indices:
                one, other = (self.element(line, w.convert("zext", k, "i64")) for k in (index, next_index))
                same = w.binary("and", same, w.compare("ne", one, other))
            w.store(w.binary("or", w.read(found, "i8"), w.convert("zext", same, "i8")), found, 0)
        tied = w.read(found, "i8")
        w.store(tied, w.at(self.job["ties"], line.number, "i8"), 1)
        return tied


class Digits(Elements):
    """Writes sorts by digits: see Note [Digits]."""

    def __init__(self, sort: Sort, w: Writer, target: Processor) -> None:
        super().__init__(sort, w)
        self.lanes = target.bytes // 4
        self.counts = array(w, sort.digits << BITS, "i32")

    def digit(self, key: Value, which: Value) -> Value:
        w, kind = self.w, self.sort.key
        shift = self.as_key(w.mul(which, BITS))
        digit = w.binary("and", w.binary("lshr", key, shift), (1 << BITS) - 1)
        return digit if kind == "i64" else w.convert("zext", digit, "i64")

    def counter(self, base: Value, digit: Value) -> Value:
        return self.w.at(self.counts, self.w.add(digit, base), "i32")

    def sort_line(self, line: Line) -> Value | None:
        """Sort one line; returns its byte of ties if the sort has them."""
        w, sort = self.w, self.sort
        self.clear(self.counts, 4 * sort.digits << BITS)
        cells = [w.cell(self.slot(k)) for k in range(ITEMS)]
        self.take(line, (self.slot(0), self.slot(2)), ZERO, self.count)
        whole = (ZERO, self.count)

        def items() -> Items:
            return w.read(cells[0], "ptr"), w.read(cells[2], "ptr")

        with w.loop(ZERO, constant(sort.digits if sort.ties else sort.digits - 1, "i64")) as which:
            read, write = items(), (w.read(cells[1], "ptr"), w.read(cells[3], "ptr"))
            with w.when(self.differs(read, which)):
                self.add_up(w.binary("shl", which, BITS))
                self.deal(read, write, which, *whole)
                for cell, value in zip(cells, (write[0], read[0], write[1], read[1]), strict=True):
                    w.store(value, cell, 0)
        if sort.ties:
            self.write(line, items(), *whole)
            return self.ties(line, items())
        highest = constant(sort.digits - 1, "i64")
        differs = self.differs(items(), highest)
        with w.when(differs):
            self.add_up(w.binary("shl", highest, BITS))
            self.deal(items(), line, highest, *whole)
        with w.when(w.negated(differs)):
            self.write(line, items(), *whole)
        return None

    def differs(self, items: Items, which: Value) -> Value:
        """Whether not all items have the same digit."""
        w = self.w
        same = w.load(self.counter(w.binary("shl", which, BITS), self.digit(self.item(items, ZERO)[0], which)), "i32")
        return w.compare("ne", w.convert("zext", same, "i64"), self.count)

    def take(self, line: Line, items: Items, first: Value, last: Value) -> None:
        """Make items of the elements from `first` to before `last`, and count all digits."""
        w, sort = self.w, self.sort
        with w.loop(first, last) as at:
            key = self.key_of(self.element(line, at))
            self.put(key, w.convert("trunc", at, "i32"), items, at)
            for which in range(sort.digits):
                self.count_one(constant(which << BITS, "i64"), self.digit(key, constant(which, "i64")))

    def count_one(self, base: Value, digit: Value) -> Value:
        """Count a digit; returns its count before."""
        counter = self.counter(base, digit)
        before = self.w.load(counter, "i32")
        self.w.store(self.w.add(before, 1), counter)
        return before

    def deal(self, read: Items, write: Items | Line, which: Value, first: Value, last: Value) -> None:
        """One pass: distribute items by a digit; in the last pass write a line's results in place of items."""
        w, base = self.w, self.w.binary("shl", which, BITS)
        with w.loop(first, last) as at:
            key, index = self.item(read, at)
            to = self.count_one(base, self.digit(key, which))
            if isinstance(write, Line):
                self.write_one(write, w.convert("zext", index, "i64"), w.convert("zext", to, "i64"))
            else:
                self.put(key, index, write, w.convert("zext", to, "i64"))

    def clear(self, address: Value, size: int) -> None:
        self.w.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self.w.line(f"call void @llvm.memset.p0.i64({address.typed}, i8 0, i64 {size}, i1 false)")

    def add_up(self, base: Value) -> None:
        """Replace the counts of digits by their exclusive sums, a vector at a time."""
        w, lanes = self.w, self.lanes
        zeros = Value("zeroinitializer", "i32", lanes)
        total = w.cell(constant(0, "i32", lanes))
        with w.loop(ZERO, constant(1 << BITS, "i64"), lanes) as digit:
            place = self.counter(base, digit)
            counts = w.load(place, "i32", lanes)
            sums, step = counts, 1
            while step < lanes:
                shifted = [k - step if k >= step else lanes for k in range(lanes)]  # zeros in the first lanes
                sums, step = w.add(sums, w.shuffle(shifted, sums, zeros)), 2 * step
            before = w.read(total, "i32", lanes)
            w.store(w.add(before, w.sub(sums, counts)), place)
            w.store(w.add(before, w.shuffle([lanes - 1] * lanes, sums, zeros)), total, 0)


class Ranks(Elements):
    """Writes sorts of short lines by ranks: see Note [Ranks]."""

    def __init__(self, sort: Sort, w: Writer, target: Processor) -> None:
        super().__init__(sort, w)
        self.lanes = target.bytes // element_bytes(sort.key)

    def sort_line(self, line: Line) -> Value | None:
        """Sort one line; returns its byte of ties if the sort has them."""
        w, sort, lanes, count = self.w, self.sort, self.lanes, self.count
        keys, ranks, size = self.slot(0), self.slot(1), element_bytes(sort.key)
        whole = w.binary("and", count, -lanes)
        for begin, end, step in ((ZERO, whole, lanes), (whole, count, 1)):
            with w.loop(begin, end, step) as at:
                w.store(self.key_of(self.element(line, at, step)), w.at(keys, at, sort.key), size)
        steps = lane_numbers(lanes, sort.key)
        with w.loop(ZERO, count, lanes) as first:
            mine = w.load(w.at(keys, first, sort.key), sort.key, lanes, size)
            rank = w.cell(constant(0, sort.key, lanes))
            last = w.least(w.add(first, lanes), count)
            for begin, end, part in ((ZERO, first, "before"), (first, last, "within"), (last, count, "behind")):
                with w.loop(begin, end) as other:
                    key = w.splat(w.load(w.at(keys, other, sort.key), sort.key, align=size), lanes)
                    less = w.compare("ule" if part == "before" else "ult", key, mine)
                    if part == "within":
                        later = w.compare("ugt", steps, w.splat(self.as_key(w.sub(other, first)), lanes))
                        less = w.binary("or", less, w.binary("and", later, w.compare("eq", key, mine)))
                    now = w.read(rank, sort.key, lanes)
                    w.store(w.add(now, w.convert("zext", less, sort.key)), rank, 0)
            w.store(w.read(rank, sort.key, lanes), w.at(ranks, first, sort.key), size)
        sorted_items = (self.slot(2), self.slot(3))
        with w.loop(ZERO, count) as at:
            rank = w.load(w.at(ranks, at, sort.key), sort.key, align=size)
            rank = rank if sort.key == "i64" else w.convert("zext", rank, "i64")
            if sort.ties:
                key = w.load(w.at(keys, at, sort.key), sort.key, align=size)
                self.put(key, w.convert("trunc", at, "i32"), sorted_items, rank)
            self.write_one(line, at, rank)
        return self.ties(line, sorted_items) if sort.ties else None


class _Shares:
    """Writes the function that sorts shares of the lines, one line after another."""

    def __init__(self, lines: Digits | Ranks) -> None:
        self.lines, self.sort, self.w = lines, lines.sort, lines.w
        self.job, self.count = lines.job, lines.count
        self.more_ties = self.w.cell(ZERO)

    def function(self) -> str:
        w, job, sort = self.w, self.job, self.sort
        with w.loop(BEGIN, END) as share:
            self.lines.scratch = w.at(job["scratch"], w.mul(w.mul(share, arrays(sort)), job["room"]), "i8")
            first, last = (
                w.binary("udiv", w.mul(one, job["tasks"]), job["shares"]) for one in (share, w.add(share, 1))
            )
            with w.loop(first, last) as task:
                if sort.across:
                    self.group(task)
                else:
                    start = w.mul(task, self.count)
                    memory = (w.at(job["source"], start, sort.memory), w.at(job["values"], start, sort.memory))
                    self.line(Line(*memory, w.at(job["indices"], start, "i64"), task))
        return threaded(w, "fs.part")

    def group(self, task: Value) -> None:
        """Lines side by side, each of which is contiguous in scratch."""
        w, job, sort = self.w, self.job, self.sort
        groups = w.binary("udiv", w.add(job["inner"], GROUP - 1), GROUP)
        first = w.mul(w.binary("urem", task, groups), GROUP)
        width = w.least(w.sub(job["inner"], first), GROUP)
        outer = w.mul(w.binary("udiv", task, groups), job["inner"])
        start = w.add(w.mul(outer, self.count), first)
        with self.elements(start, width) as (lane, row, at):
            element = w.load(w.at(job["source"], at, sort.memory), sort.memory, align=1)
            w.store(element, w.at(self.lane_of(0, lane), row, sort.memory), 1)
        with w.loop(ZERO, width) as lane:
            lanes = [self.lane_of(which, lane) for which in range(3)]
            self.line(Line(lanes[0], lanes[1], lanes[2], w.add(w.add(outer, first), lane)))
        for which, name, kind, wanted in ((1, "values", sort.memory, sort.values), (2, "indices", "i64", sort.indices)):
            if wanted:
                with self.elements(start, width) as (lane, row, at):
                    found = w.load(w.at(self.lane_of(which, lane), row, kind), kind, align=1)
                    w.store(found, w.at(job[name], at, kind), 1)

    def lane_of(self, which: int, lane: Value) -> Value:
        return self.lines.slot(self.w.add(lane, ITEMS + which * GROUP))

    @contextmanager
    def elements(self, start: Value, width: Value) -> Iterator[tuple[Value, Value, Value]]:
        """All elements of a group: the line in it, the index there, and the offset in memory."""
        w = self.w
        with w.loop(ZERO, self.count) as row:
            across = w.add(start, w.mul(row, self.job["inner"]))
            with w.loop(ZERO, width) as lane:
                yield lane, row, w.add(across, lane)

    def line(self, line: Line) -> None:
        """One line; where most had ties, the rest is not sorted: ATen sorts it anyway."""
        w = self.w
        if not self.sort.ties:
            self.lines.sort_line(line)
            return
        with w.when(w.compare("sle", w.read(self.more_ties, "i64"), MOST_TIES)):
            tied = self.lines.sort_line(line)
            assert tied is not None
            step = w.sub(w.binary("shl", w.convert("zext", tied, "i64"), 1), 1)
            w.store(w.add(w.read(self.more_ties, "i64"), step), self.more_ties, 0)

"""The Mersenne Twister of ATen's CPU generator as LLVM IR, many words at a time.

Note [Twister]: the 624 words of the state are renewed together, each from the two after it and one 397 further on, of
the old words or the new ones. None is closer than a vector to where it is written, so vectors of 16 may be renewed in
place, in order. (The first is repeated after the last, where vectors reach across the end.) A draw takes tempered
words: one for a float of 24 bits, two for a double of 53, the high one first.

Source: M. Matsumoto, T. Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform pseudo-random number
generator", ACM TOMACS 8 (1998).
"""

from __future__ import annotations

from framesmith_backends.native_ops.job import Job, OperatorModule, array
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters
from framesmith_backends.target import Processor

WORDS, AHEAD, LANES = 624, 397, 16
UPPER, LOWER, TWIST = 0x80000000, 0x7FFFFFFF, 0x9908B0DF
#: (shift, whether to the right, mask)
TEMPERING = ((11, True, 0xFFFFFFFF), (7, False, 0x9D2C5680), (15, False, 0xEFC60000), (18, True, 0xFFFFFFFF))
#: Bits of a double and of a float that are drawn.
DOUBLE_BITS, FLOAT_BITS = 53, 24

#: Offsets in the state of `torch.Generator.get_state`, in bytes.
LEFT_AT, NEXT_AT, WORDS_AT = 8, 16, 24

#: An element of a mask is true where its integer of 53 bits is below `threshold`.
JOB = Job("ptr state", "ptr out", "i64 n", "i64 threshold")
MASK, FLOATS = "fs_draw_mask", "fs_draw_floats"


def render_draws(_: None, target: Processor) -> str:
    """A module with `void fs_draw_mask(ptr job)` and `void fs_draw_floats(ptr job)`, which advance the state."""
    module = OperatorModule(target)
    parts = [write(module.writer()) for write in (_temper, _renew, _take, _give, _mask, _floats)]
    return module.text(*parts, threads=False)


def _word(value: int) -> Value:
    return constant(value, "i32", LANES)


def _tempered(w: Writer, y: Value) -> Value:
    for shift, right, mask in TEMPERING:
        moved = w.binary("lshr" if right else "shl", y, w.number(shift, y))
        y = w.binary("xor", y, w.binary("and", moved, w.number(mask, y)))
    return y


def _temper(w: Writer) -> str:
    """Temper all words."""
    p = parameters("ptr words", "ptr drawn")
    with w.loop(ZERO, constant(WORDS, "i64"), LANES) as i:
        words = w.load(w.at(p["words"], i, "i32"), "i32", LANES)
        w.store(_tempered(w, words), w.at(p["drawn"], i, "i32"))
    return w.function("define internal void @fs.temper(ptr %words, ptr %drawn)")


def _renew(w: Writer) -> str:
    """Renew the words in place: see Note [Twister]."""
    p = parameters("ptr words", "ptr drawn")

    def renewed(i: Value, ahead: int) -> None:
        one, two, far = (w.load(w.at(p["words"], w.add(i, step), "i32"), "i32", LANES) for step in (0, 1, ahead))
        mixed = w.binary("or", w.binary("and", one, _word(UPPER)), w.binary("and", two, _word(LOWER)))
        odd = w.compare("ne", w.binary("and", two, _word(1)), _word(0))
        twist = w.select(odd, _word(TWIST), _word(0))
        new = w.binary("xor", w.binary("xor", far, w.binary("lshr", mixed, _word(1))), twist)
        w.store(new, w.at(p["words"], i, "i32"))

    across = (WORDS - AHEAD) // LANES * LANES + LANES  # up to here vectors read old words ahead, or across the end
    renewed(ZERO, AHEAD)
    w.store(w.load(p["words"], "i32", LANES), w.at(p["words"], WORDS, "i32"))
    with w.loop(constant(LANES, "i64"), constant(across, "i64"), LANES) as i:
        renewed(i, AHEAD)
    with w.loop(constant(across, "i64"), constant(WORDS, "i64"), LANES) as i:
        renewed(i, AHEAD - WORDS)
    w.line("call void @fs.temper(ptr %words, ptr %drawn)")
    return w.function("define internal void @fs.renew(ptr %words, ptr %drawn)")


def _take(w: Writer) -> str:
    """Read a state's words, and temper them; returns the index of the next one."""
    p = parameters("ptr state", "ptr words", "ptr drawn")
    stored = w.at(p["state"], WORDS_AT, "i8")
    with w.loop(ZERO, constant(WORDS, "i64"), LANES) as i:
        wide = w.load(w.at(stored, i, "i64"), "i64", LANES, 8)
        w.store(w.convert("trunc", wide, "i32"), w.at(p["words"], i, "i32"))
    w.line("call void @fs.temper(ptr %words, ptr %drawn)")
    left = w.convert("zext", w.load(w.at(p["state"], LEFT_AT, "i8"), "i32"), "i64")
    index = w.sub(constant(WORDS + 1, "i64"), left)
    return w.function("define internal i64 @fs.take(ptr %state, ptr %words, ptr %drawn)", f"ret {index.typed}")


def _give(w: Writer) -> str:
    """Write the words back to the state, with the index of the next one."""
    p = parameters("ptr state", "ptr words", "i64 index")
    stored = w.at(p["state"], WORDS_AT, "i8")
    with w.loop(ZERO, constant(WORDS, "i64"), LANES) as i:
        words = w.load(w.at(p["words"], i, "i32"), "i32", LANES)
        w.store(w.convert("zext", words, "i64"), w.at(stored, i, "i64"), 8)
    left = w.convert("trunc", w.sub(constant(WORDS + 1, "i64"), p["index"]), "i32")
    w.store(left, w.at(p["state"], LEFT_AT, "i8"))
    w.store(p["index"], w.at(p["state"], NEXT_AT, "i8"), 8)
    return w.function("define internal void @fs.give(ptr %state, ptr %words, i64 %index)")


class _Drawing:
    """The words of one call, the index of the next one, and the number of elements drawn."""

    def __init__(self, w: Writer, state: Value) -> None:
        self.w, self.state = w, state
        self.words, self.drawn = (array(w, WORDS + LANES, "i32") for _ in range(2))
        start = w.emit(f"call i64 @fs.take({state.typed}, {self.words.typed}, {self.drawn.typed})", "i64")
        self.index = w.cell(start)
        self.done = w.cell(ZERO)

    def renew(self) -> None:
        self.w.line(f"call void @fs.renew({self.words.typed}, {self.drawn.typed})")
        self.w.store(ZERO, self.index, 0)

    def renewed(self) -> Value:
        """The index of the next word, after renewing the words if all are drawn."""
        with self.w.when(self.w.compare("eq", self.w.read(self.index, "i64"), WORDS)):
            self.renew()
        return self.w.read(self.index, "i64")

    def load(self, index: Value, kind: str = "i32", lanes: int = 1) -> Value:
        return self.w.load(self.w.at(self.drawn, index, "i32"), kind, lanes)

    def advance(self, words: Value | int, elements: Value | int) -> None:
        w = self.w
        w.store(w.add(w.read(self.index, "i64"), words), self.index, 0)
        w.store(w.add(w.read(self.done, "i64"), elements), self.done, 0)

    def finish(self, name: str) -> str:
        index = self.w.read(self.index, "i64")
        self.w.line(f"call void @fs.give({self.state.typed}, {self.words.typed}, {index.typed})")
        return self.w.function(f"define void @{name}(ptr %job)")


def _below(w: Writer, high_and_low: Value, threshold: Value) -> Value:
    """Whether doubles, pairs of words with the high one first, are below the threshold; bytes."""
    numbers = w.binary("and", w.intrinsic("fshl", high_and_low, high_and_low, w.number(32, high_and_low)),
                       w.number((1 << DOUBLE_BITS) - 1, high_and_low))  # fmt: skip
    return w.convert("zext", w.compare("ult", numbers, threshold), "i8")


def _mask(w: Writer) -> str:
    """A byte for each element: whether the double drawn for it is below the threshold."""
    p = JOB.load(w)
    d = _Drawing(w, p["state"])
    lanes = LANES // 2
    with w.repeat(lambda: w.compare("ult", w.read(d.done, "i64"), p["n"])):
        index, done = d.renewed(), w.read(d.done, "i64")
        pairs = w.least(w.binary("lshr", w.sub(constant(WORDS, "i64"), index), 1), w.sub(p["n"], done))
        out = w.at(p["out"], done, "i8")
        whole = w.binary("and", pairs, -lanes)
        for first, last, step in ((ZERO, whole, lanes), (whole, pairs, 1)):
            with w.loop(first, last, step) as j:
                both = d.load(w.add(index, w.mul(j, 2)), "i64", step)
                w.store(_below(w, both, p["threshold"]), w.at(out, j, "i8"), 1)
        d.advance(w.mul(pairs, 2), pairs)
        with w.when(w.compare("eq", pairs, 0)):  # one word is left: the low one is the first after renewing
            high = w.convert("zext", d.load(index), "i64")
            d.renew()
            low = w.convert("zext", d.load(ZERO), "i64")
            both = w.binary("or", w.binary("shl", low, 32), high)
            w.store(_below(w, both, p["threshold"]), out, 1)
            d.advance(1, 1)
    return d.finish(MASK)


def _floats(w: Writer) -> str:
    """Floats from 0 to below 1, of 24 bits."""
    p = JOB.load(w)
    d = _Drawing(w, p["state"])

    with w.repeat(lambda: w.compare("ult", w.read(d.done, "i64"), p["n"])):
        index, done = d.renewed(), w.read(d.done, "i64")
        count = w.least(w.sub(constant(WORDS, "i64"), index), w.sub(p["n"], done))
        out = w.at(p["out"], done)
        whole = w.binary("and", count, -LANES)
        for first, last, step in ((ZERO, whole, LANES), (whole, count, 1)):
            with w.loop(first, last, step) as j:
                words = d.load(w.add(index, j), "i32", step)
                bits = w.binary("and", words, w.number((1 << FLOAT_BITS) - 1, words))
                w.store(w.mul(w.convert("sitofp", bits, "float"), 2.0**-FLOAT_BITS), w.at(out, j))
        d.advance(count, count)
    return d.finish(FLOATS)

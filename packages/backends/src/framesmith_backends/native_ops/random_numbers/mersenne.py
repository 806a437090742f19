"""ATen's random numbers on the CPU in machine code: the Mersenne Twister, many words at a time.

Note [Twister]: the generator's 624 words are renewed all at once, each from two that stand behind it and one 397 places
on, of the old words or of the new ones. None is closer than a vector to where it is written, so vectors of 16 may be
renewed in place, in order. (The first is repeated behind the last, where vectors reach across the end.) What is drawn
are tempered words: one for a float of 24 bits, two for a double of 53, the first of them the high one.

Source: M. Matsumoto, T. Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform pseudo-random number
generator", ACM TOMACS 8 (1998).
"""

from __future__ import annotations

from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.runtime import attributes
from framesmith_backends.render.llvm.writer import ZERO, Writer, parameters
from framesmith_backends.target import Processor

WORDS, AHEAD, LANES = 624, 397, 16
UPPER, LOWER, TWIST = 0x80000000, 0x7FFFFFFF, 0x9908B0DF
#: (shift, whether to the right, mask)
TEMPERING = ((11, True, 0xFFFFFFFF), (7, False, 0x9D2C5680), (15, False, 0xEFC60000), (18, True, 0xFFFFFFFF))
#: Bits of a double and of a float that are drawn.
DOUBLE_BITS, FLOAT_BITS = 53, 24

#: Where a generator's state, as `torch.Generator.get_state` gives it, has what: in bytes.
LEFT_AT, NEXT_AT, WORDS_AT = 8, 16, 24

#: What the functions take, in order. `threshold` is of the whole numbers of 53 bits below which an element is true.
MASK_NAMES = ("ptr state", "ptr out", "i64 n", "i64 threshold")
FLOAT_NAMES = ("ptr state", "ptr out", "i64 n")


def render_draws(target: Processor) -> str:
    """A module with `void fs_draw_mask(...)` and `void fs_draw_floats(...)`, which advance the state they are given."""
    declarations: dict[str, None] = {}

    def writer() -> Writer:
        return Writer(declared=declarations)

    parts = [_temper(writer()), _renew(writer()), _take(writer()), _give(writer()), _mask(writer()), _floats(writer())]
    return "\n\n".join([*declarations, *parts, attributes(target)])


def _word(value: int) -> Value:
    return constant(value, "i32", LANES)


def _tempered(w: Writer, y: Value) -> Value:
    for shift, right, mask in TEMPERING:
        moved = w.binary("lshr" if right else "shl", y, w.number(shift, y))
        y = w.binary("xor", y, w.binary("and", moved, w.number(mask, y)))
    return y


def _temper(w: Writer) -> str:
    """The words as they are drawn."""
    p = parameters("ptr words", "ptr drawn")
    with w.loop(ZERO, constant(WORDS, "i64"), LANES) as i:
        words = w.load(w.at(p["words"], i, "i32"), "i32", LANES)
        w.store(_tempered(w, words), w.at(p["drawn"], i, "i32"))
    return w.function("define internal void @fs.temper(ptr %words, ptr %drawn)")


def _renew(w: Writer) -> str:
    """New words in place of those that have been drawn; see Note [Twister]."""
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
    """A state's words and their tempered form; how many have been drawn."""
    p = parameters("ptr state", "ptr words", "ptr drawn")
    kept = w.at(p["state"], WORDS_AT, "i8")
    with w.loop(ZERO, constant(WORDS, "i64"), LANES) as i:
        wide = w.load(w.at(kept, i, "i64"), "i64", LANES, 8)
        w.store(w.convert("trunc", wide, "i32"), w.at(p["words"], i, "i32"))
    w.line("call void @fs.temper(ptr %words, ptr %drawn)")
    left = w.convert("zext", w.load(w.at(p["state"], LEFT_AT, "i8"), "i32"), "i64")
    place = w.sub(constant(WORDS + 1, "i64"), left)
    return w.function("define internal i64 @fs.take(ptr %state, ptr %words, ptr %drawn)", f"ret {place.typed}")


def _give(w: Writer) -> str:
    """The words back to the state, of which `place` have been drawn."""
    p = parameters("ptr state", "ptr words", "i64 place")
    kept = w.at(p["state"], WORDS_AT, "i8")
    with w.loop(ZERO, constant(WORDS, "i64"), LANES) as i:
        words = w.load(w.at(p["words"], i, "i32"), "i32", LANES)
        w.store(w.convert("zext", words, "i64"), w.at(kept, i, "i64"), 8)
    left = w.convert("trunc", w.sub(constant(WORDS + 1, "i64"), p["place"]), "i32")
    w.store(left, w.at(p["state"], LEFT_AT, "i8"))
    w.store(p["place"], w.at(p["state"], NEXT_AT, "i8"), 8)
    return w.function("define internal void @fs.give(ptr %state, ptr %words, i64 %place)")


class _Drawing:
    """The words of one call, and what has been done with them."""

    def __init__(self, w: Writer, state: Value) -> None:
        self.w, self.state = w, state
        self.words, self.drawn = (self._array() for _ in range(2))
        start = w.emit(f"call i64 @fs.take({state.typed}, {self.words.typed}, {self.drawn.typed})", "i64")
        self.place = w.cell(start)
        self.done = w.cell(ZERO)

    def _array(self) -> Value:
        name = self.w.name()
        self.w.entry.append(f"{name} = alloca [{WORDS + LANES} x i32], align 64")
        return Value(name, "ptr")

    def renew(self) -> None:
        self.w.line(f"call void @fs.renew({self.words.typed}, {self.drawn.typed})")
        self.w.store(ZERO, self.place, 0)

    def renew_if_all_are_drawn(self) -> Value:
        """The place of the next word."""
        with self.w.when(self.w.compare("eq", self.w.read(self.place, "i64"), WORDS)):
            self.renew()
        return self.w.read(self.place, "i64")

    def load(self, place: Value, kind: str = "i32", lanes: int = 1) -> Value:
        return self.w.load(self.w.at(self.drawn, place, "i32"), kind, lanes)

    def advance(self, words: Value | int, elements: Value | int) -> None:
        w = self.w
        w.store(w.add(w.read(self.place, "i64"), words), self.place, 0)
        w.store(w.add(w.read(self.done, "i64"), elements), self.done, 0)

    def finish(self, head: str) -> str:
        place = self.w.read(self.place, "i64")
        self.w.line(f"call void @fs.give({self.state.typed}, {self.words.typed}, {place.typed})")
        return self.w.function(head)


def _head(name: str, names: tuple[str, ...]) -> str:
    return f"define void @{name}({', '.join(f'{kind} %{short}' for kind, short in map(str.split, names))})"


def _below(w: Writer, high_and_low: Value, threshold: Value) -> Value:
    """Whether doubles, whose two words lie one behind the other, the high one first, are below the threshold; bytes."""
    numbers = w.binary("and", w.intrinsic("fshl", high_and_low, high_and_low, w.number(32, high_and_low)),
                       w.number((1 << DOUBLE_BITS) - 1, high_and_low))  # fmt: skip
    return w.convert("zext", w.compare("ult", numbers, threshold), "i8")


def _mask(w: Writer) -> str:
    """A byte for each element: whether a double that is drawn for it is below the threshold."""
    p = parameters(*MASK_NAMES)
    d = _Drawing(w, p["state"])
    lanes = LANES // 2
    with w.repeat(lambda: w.compare("ult", w.read(d.done, "i64"), p["n"])):
        place, done = d.renew_if_all_are_drawn(), w.read(d.done, "i64")
        pairs = w.least(w.binary("lshr", w.sub(constant(WORDS, "i64"), place), 1), w.sub(p["n"], done))
        out = w.at(p["out"], done, "i8")
        whole = w.binary("and", pairs, -lanes)
        with w.loop(ZERO, whole, lanes) as j:
            both = d.load(w.add(place, w.mul(j, 2)), "i64", lanes)
            w.store(_below(w, both, p["threshold"]), w.at(out, j, "i8"), 1)
        with w.loop(whole, pairs) as j:
            both = d.load(w.add(place, w.mul(j, 2)), "i64")
            w.store(_below(w, both, p["threshold"]), w.at(out, j, "i8"), 1)
        d.advance(w.mul(pairs, 2), pairs)
        with w.when(w.compare("eq", pairs, 0)):  # one word is left: the other is the first of the next
            high = w.convert("zext", d.load(place), "i64")
            d.renew()
            low = w.convert("zext", d.load(ZERO), "i64")
            both = w.binary("or", w.binary("shl", low, 32), high)
            w.store(_below(w, both, p["threshold"]), out, 1)
            d.advance(1, 1)
    return d.finish(_head("fs_draw_mask", MASK_NAMES))


def _floats(w: Writer) -> str:
    """Floats from 0 to below 1, of 24 bits."""
    p = parameters(*FLOAT_NAMES)
    d = _Drawing(w, p["state"])

    def of(words: Value) -> Value:
        bits = w.binary("and", words, w.number((1 << FLOAT_BITS) - 1, words))
        return w.mul(w.convert("sitofp", bits, "float"), 2.0**-FLOAT_BITS)

    with w.repeat(lambda: w.compare("ult", w.read(d.done, "i64"), p["n"])):
        place, done = d.renew_if_all_are_drawn(), w.read(d.done, "i64")
        count = w.least(w.sub(constant(WORDS, "i64"), place), w.sub(p["n"], done))
        out = w.at(p["out"], done)
        whole = w.binary("and", count, -LANES)
        with w.loop(ZERO, whole, LANES) as j:
            w.store(of(d.load(w.add(place, j), "i32", LANES)), w.at(out, j))
        with w.loop(whole, count) as j:
            w.store(of(d.load(w.add(place, j))), w.at(out, j))
        d.advance(count, count)
    return d.finish(_head("fs_draw_floats", FLOAT_NAMES))

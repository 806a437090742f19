"""Powers of two and squares in float32 and float64, of which elementary functions are made.

Note [No subnormal steps]: Intel's processors do by microcode, 100 times as slowly, what takes or gives a subnormal
number, and what rounds to 0 a result that is not. So no step does that unless the function's own result is such a one,
or its argument. Where a result is 0, what is scaled is not kept (`scale`); squares of small numbers are taken with
something added that counts nowhere (`square`); where a small number's square times it counts nowhere, the
square is 0 (`approximate_square`); errors of roundings are computed of numbers that are bounded below, or scaled up.
tests/render/llvm/test_no_subnormals.py counts them.
"""

from __future__ import annotations

from dataclasses import dataclass

from framesmith_backends.render.llvm.builder import Builder, Value


@dataclass(frozen=True, slots=True)
class Format:
    """A floating type: the integer of its size, the digits of a significand behind the point, and its exponent's bias.

    `rounding`, added to a number of less than half its digits, rounds it to a whole one, which is then in the low bits
    of the sum. `least_square` is nothing beside 1, and what a number of this type loses of it is normal; `step` is as
    little, but its last place times a number of that size is normal. `reach` is what a result may be scaled by last.
    """

    bits: str
    digits: int
    bias: int
    rounding: float
    least_square: float
    step: float
    reach: int

    def nothing(self, either_way: bool) -> float:
        """The whole number whose power is 0: a factor's exponent is that of 0."""
        return 2.0 - 2.0 * self.bias if either_way else -float(self.reach + self.bias)


FORMATS = {
    "float": Format("i32", 23, 127, 1.5 * 2.0**23, 2.0**-100, 2.0**-50, 64),
    "double": Format("i64", 52, 1023, 1.5 * 2.0**52, 2.0**-900, 2.0**-440, 512),
}
FLOAT, DOUBLE = FORMATS["float"], FORMATS["double"]
# What AVX-512 calls its scaling of 512 bits: lanes, the type's suffix, the type of a mask of lanes.
SCALEF = {"float": (16, "ps", "i16"), "double": (8, "pd", "i8")}


def square(b: Builder, x: Value) -> Value:
    """x * x, or for small x another small normal number: beside 1 neither counts."""
    return b.fma(x, x, FORMATS[x.kind].least_square)


def approximate_square(b: Builder, x: Value) -> Value:
    """x * x, off by much less than a last place of 1, and 0 for small x: so that x times it is no subnormal."""
    step = FORMATS[x.kind].step
    return b.sub(b.fma(x, x, step), step)


def whole_part(b: Builder, x: Value, factor: float, more: int = 0) -> tuple[Value, Value]:
    """(n, t): n is x * factor rounded to a whole number, t the sum whose low bits hold n + more."""
    rounding = FORMATS[x.kind].rounding + more
    t = b.fma(x, factor, rounding)
    return b.sub(t, rounding), t


def power_of_two(b: Builder, t: Value, more: int = 0) -> Value:
    """2**(n + more), with n as `whole_part` left it in t, where that is a normal number; 0 for the one below those."""
    form = FORMATS[t.kind]
    return b.bits(b.binary("shl", b.add(b.bits(t, form.bits), form.bias + more), form.digits), t.kind)


def times_power(b: Builder, p: Value, t: Value) -> Value:
    """p * 2**n, with n as `whole_part` left it in t, where p and the result are positive and normal."""
    return b.bits(b.add(b.bits(p, FORMATS[t.kind].bits), _exponent(b, t)), t.kind)


def has_scalef(b: Builder, x: Value) -> bool:
    return b.avx512 and x.lanes % SCALEF[x.kind][0] == 0


def scale(b: Builder, x: Value, t: Value, more: int = 0, last: int | None = None, kept: Value | None = None) -> Value:
    """x * 2**(n + more) rounded once, with n as `whole_part` left it in t; 0 in lanes that are not kept.

    Those are lanes of `kept`, or without AVX-512 where n is `nothing(False)`. 2**last is what is multiplied by last,
    by default a small number: n + more - last is to be a normal number's exponent, and x times that number finite.
    """
    form = FORMATS[x.kind]
    if has_scalef(b, x):
        return scalef(b, x, b.sub(t, form.rounding - more), kept)
    last = -form.reach if last is None else last
    rest = b.number(2.0**last, x)
    power = b.mul(x, power_of_two(b, t, more - last))
    return b.mul(power, rest if kept is None else or_zero(b, kept, rest))


def scale_either_way(b: Builder, x: Value, n: Value, t: Value, kept: Value) -> Value:
    """The same for any n, of which t holds n + bias - 1, and a result that may be infinite; 0 where it is not kept.

    There n is to be `nothing(True)`.

    x is between 1/2 and 2. The factors are the nearest power to 2**(n - 1) that keeps it normal, and the rest of 2**n.
    """
    form = FORMATS[x.kind]
    if has_scalef(b, x):
        return scalef(b, x, n, kept)
    least = b.number(form.rounding + 2.0, t)
    power = _exponent(b, b.select(b.compare("olt", t, least), least, t))
    rest = b.add(b.sub(_exponent(b, t), power), (form.bias + 1) << form.digits)
    return b.mul(b.mul(x, b.bits(power, x.kind)), b.bits(rest, x.kind))


def _exponent(b: Builder, t: Value) -> Value:
    """The bits of the power of two whose exponent, with the bias, t holds."""
    form = FORMATS[t.kind]
    return b.binary("shl", b.bits(t, form.bits), form.digits)


def or_zero(b: Builder, kept: Value, x: Value) -> Value:
    """x where it is kept, else 0."""
    return b.select(kept, x, b.number(0.0, x))


def scalef(b: Builder, x: Value, n: Value, kept: Value | None = None) -> Value:
    """x * 2**n in one AVX-512 instruction for each 16 lanes of float32, or 8 of float64; 0 in lanes that are not kept.

    Those are masked, and of x they are 0 already: LLVM moves a mask to whoever takes the result, and what was masked
    would underflow.
    """
    if kept is not None:
        x = or_zero(b, kept, x)
    lanes, suffix, mask = SCALEF[x.kind]
    vector, name = f"<{lanes} x {x.kind}>", f"@llvm.x86.avx512.mask.scalef.{suffix}.512"
    b.declare(f"declare {vector} {name}({vector}, {vector}, {vector}, {mask}, i32)")

    def scaled(a: Value, c: Value, among: Value | None = None) -> Value:
        where = f"{mask} -1" if among is None else b.emit(f"bitcast {among.typed} to {mask}", mask).typed
        text = f"call {vector} {name}({a.typed}, {c.typed}, {vector} zeroinitializer, {where}, i32 4)"
        return b.emit(text, x.kind, lanes)

    return b.by_parts(lanes, scaled, x, n, *([] if kept is None else [kept]))

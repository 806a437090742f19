"""Writing LLVM IR as text: typed values, scalar or vector, and the instructions the kernels are made of."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name or constant of LLVM element type `kind` ("float", "i64", ...), in `lanes` lanes (1: scalar)."""

    text: str
    kind: str
    lanes: int = 1

    @property
    def type(self) -> str:
        return self.kind if self.lanes == 1 else f"<{self.lanes} x {self.kind}>"

    @property
    def typed(self) -> str:
        return f"{self.type} {self.text}"


def element_bytes(kind: str) -> int:
    """The size, and the alignment, of an element in memory."""
    return {"i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4}.get(kind, 8)


def float_text(value: float, kind: str) -> str:
    """A floating constant as LLVM reads it: the bits of the double (of the value rounded to float, for float)."""
    if kind == "float":
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def constant(value: bool | int | float, kind: str, lanes: int = 1) -> Value:
    if kind in ("float", "double"):
        text = float_text(float(value), kind)
    elif kind == "i1":
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return Value(text if lanes == 1 else f"splat ({kind} {text})", kind, lanes)


@dataclass(slots=True)
class Builder:
    """Appends instructions to `out`, the list of lines of the region being written."""

    prefix: str = "v"
    count: int = 0
    # " contract" lets LLVM fuse a multiplication into a sum; the elementary functions are written without it.
    flags: str = ""
    # The processor's vector instructions, as its `Target` names them: "avx512", "avx2" without these, or "".
    vectors: str = ""
    out: list[object] = field(default_factory=list)
    declared: dict[str, None] = field(default_factory=dict)

    @property
    def avx512(self) -> bool:
        return self.vectors == "avx512"

    @property
    def avx2(self) -> bool:
        return self.vectors == "avx2"

    def name(self) -> str:
        self.count += 1
        return f"%{self.prefix}{self.count}"

    def line(self, text: str) -> None:
        self.out.append(text)

    def emit(self, text: str, kind: str, lanes: int = 1) -> Value:
        name = self.name()
        self.out.append(f"{name} = {text}")
        return Value(name, kind, lanes)

    def declare(self, text: str) -> None:
        self.declared[text] = None

    def splat(self, value: Value, lanes: int) -> Value:
        """The value in every lane."""
        if value.lanes == lanes:
            return value
        if not value.text.startswith("%"):
            return Value(f"splat ({value.kind} {value.text})", value.kind, lanes)
        one = f"<{lanes} x {value.kind}>"
        first = self.emit(f"insertelement {one} poison, {value.typed}, i64 0", value.kind, lanes)
        text = f"shufflevector {first.typed}, {one} poison, <{lanes} x i32> zeroinitializer"
        return self.emit(text, value.kind, lanes)

    def shuffle(self, order: Sequence[int | None], one: Value, two: Value | None = None) -> Value:
        """The lanes of two vectors, counted through both, in this order; any value for None."""
        picks = ", ".join(f"i32 {'poison' if k is None else k}" for k in order)
        other = f"{one.type} poison" if two is None else two.typed
        text = f"shufflevector {one.typed}, {other}, <{len(order)} x i32> <{picks}>"
        return self.emit(text, one.kind, len(order))

    def pick(self, value: Value, lanes: range) -> Value:
        """Some of the lanes, as a vector of their own."""
        return value if len(lanes) == value.lanes else self.shuffle(lanes, value)

    def join(self, parts: list[Value]) -> Value:
        """The lanes of all the parts, one after another; their number is a power of two."""
        while len(parts) > 1:
            order = range(2 * parts[0].lanes)
            parts = [self.shuffle(order, *pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def by_parts(self, lanes: int, function: Callable[..., Value], *values: Value) -> Value:
        """The function of so many lanes of the values at a time."""
        starts = range(0, values[0].lanes, lanes)
        return self.join([function(*(self.pick(v, range(k, k + lanes)) for v in values)) for k in starts])

    def lookup(self, table: tuple[float, ...], index: Value) -> Value:
        """The entries of a table of 16 or 32 floats at the lowest bits of `index`, with AVX-512, 16 lanes at a time."""
        half, where = "<16 x float>", "<16 x i32>"
        entries = [float_text(value, "float") for value in table]
        first, *second = (
            f"{half} <{', '.join(f'float {one}' for one in entries[k : k + 16])}>" for k in range(0, len(entries), 16)
        )
        name, types = ("vpermi2var.ps", f"{half}, {where}, {half}") if second else ("permvar.sf", f"{half}, {where}")
        self.declare(f"declare {half} @llvm.x86.avx512.{name}.512({types})")

        def looked_up(part: Value) -> Value:
            given = ", ".join((first, part.typed, *second))
            return self.emit(f"call {half} @llvm.x86.avx512.{name}.512({given})", "float", 16)

        return self.by_parts(16, looked_up, index)

    def pick_of_four(self, table: tuple[int, int, int, int], index: Value) -> Value:
        """The integers of a table at the two lowest bits of `index`, with AVX2, 8 lanes at a time."""
        entries = ", ".join(f"i32 {value}" for value in table * 2)
        chosen = f"<8 x float> bitcast (<8 x i32> <{entries}> to <8 x float>)"
        call = "<8 x float> @llvm.x86.avx.vpermilvar.ps.256"
        self.declare(f"declare {call}(<8 x float>, <8 x i32>)")
        found = self.by_parts(8, lambda part: self.emit(f"call {call}({chosen}, {part.typed})", "float", 8), index)
        return self.bits(found, "i32")

    def same(self, first: Value, *others: Value | float) -> tuple[Value, ...]:
        """The values brought to the largest number of lanes among them; numbers are of the first one's kind."""
        values = [first, *(v if isinstance(v, Value) else self.number(v, first) for v in others)]
        lanes = max(v.lanes for v in values)
        return tuple(self.splat(v, lanes) for v in values)

    def number(self, value: bool | int | float, like: Value, kind: str | None = None) -> Value:
        return constant(value, like.kind if kind is None else kind, like.lanes)

    def binary(self, op: str, a: Value, b: Value | float) -> Value:
        a, right = self.same(a, b)
        return self.emit(f"{op} {a.typed}, {right.text}", a.kind, a.lanes)

    def add(self, a: Value, b: Value | float) -> Value:
        return self.binary(f"fadd{self.flags}" if a.kind in ("float", "double") else "add", a, b)

    def sub(self, a: Value, b: Value | float) -> Value:
        return self.binary(f"fsub{self.flags}" if a.kind in ("float", "double") else "sub", a, b)

    def mul(self, a: Value, b: Value | float) -> Value:
        return self.binary(f"fmul{self.flags}" if a.kind in ("float", "double") else "mul", a, b)

    def div(self, a: Value, b: Value | float) -> Value:
        return self.binary("fdiv", a, b)

    def neg(self, a: Value) -> Value:
        if a.kind in ("float", "double"):
            return self.emit(f"fneg {a.typed}", a.kind, a.lanes)
        return self.binary("sub", self.number(0, a), a)

    def compare(self, predicate: str, a: Value, b: Value | float) -> Value:
        a, right = self.same(a, b)
        op = "fcmp" if a.kind in ("float", "double") else "icmp"
        return self.emit(f"{op} {predicate} {a.typed}, {right.text}", "i1", a.lanes)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        a, b = self.same(a, b)
        if condition.lanes > a.lanes:
            a, b = self.splat(a, condition.lanes), self.splat(b, condition.lanes)
        return self.emit(f"select {condition.typed}, {a.typed}, {b.typed}", a.kind, a.lanes)

    def least(self, a: Value, b: Value | float) -> Value:
        """The smaller one of unsigned integers."""
        a, right = self.same(a, b)
        return self.select(self.compare("ult", a, right), a, right)

    def convert(self, op: str, a: Value, kind: str) -> Value:
        target = Value("", kind, a.lanes).type
        return self.emit(f"{op} {a.typed} to {target}", kind, a.lanes)

    def bits(self, a: Value, kind: str) -> Value:
        return self.convert("bitcast", a, kind)

    def intrinsic(self, name: str, first: Value, *others: Value | float) -> Value:
        """An intrinsic whose result and operands have one type, such as llvm.fabs."""
        args = self.same(first, *others)
        kind = args[0].kind
        scalar = {"float": "f32", "double": "f64"}.get(kind, kind)
        suffix = scalar if args[0].lanes == 1 else f"v{args[0].lanes}{scalar}"
        types = ", ".join(a.type for a in args)
        self.declare(f"declare {args[0].type} @llvm.{name}.{suffix}({types})")
        given = ", ".join(a.typed for a in args)
        return self.emit(f"call {args[0].type} @llvm.{name}.{suffix}({given})", kind, args[0].lanes)

    def masked_load(self, place: Value, mask: Value, kind: str = "float") -> Value:
        """Elements from an address on, or of one each, where the mask says so; else zeros, and nothing is read."""
        if place.lanes == 1 and not self.avx512 and element_bytes(kind) >= 4 and mask.text.startswith("%"):
            mask = self._unknown(mask)
        name, vector = _masked("load", "gather", place, kind, mask)
        self.declare(f"declare {vector} {name}({place.type}, i32, {mask.type}, {vector})")
        given = f"{place.typed}, i32 {element_bytes(kind)}, {mask.typed}, {vector} zeroinitializer"
        return self.emit(f"call {vector} {name}({given})", kind, mask.lanes)

    def _unknown(self, mask: Value) -> Value:
        """The mask, of none of whose lanes LLVM knows what it is.

        With AVX2 a lane's truth is the sign of 32 bits, and where LLVM knows all lanes of one register of several, it
        has their read lose its mask, or fails an assertion. (LLVM 22.1; nothing is known behind an instruction of the
        assembler, of which there is none here.)
        """
        false = self.emit('call i64 asm "", "=r,0"(i64 0)', "i64")
        return self.binary("xor", mask, self.splat(self.emit(f"trunc {false.typed} to i1", "i1"), mask.lanes))

    def masked_store(self, value: Value, place: Value, mask: Value) -> None:
        """Write elements where the mask says so, from an address on, or to one each.

        A first element alone is written by itself: of a truncated vector whose mask has one lane, LLVM 22.1 stores
        the element with the bytes that it had before, over what lies behind.
        """
        if place.lanes == 1 and mask.lanes > 1 and mask == first_lanes(1, mask.lanes):
            first = self.emit(f"extractelement {value.typed}, i64 0", value.kind)
            self.line(f"store {first.typed}, {place.typed}, align {element_bytes(value.kind)}")
            return
        name, vector = _masked("store", "scatter", place, value.kind, mask)
        self.declare(f"declare void {name}({vector}, {place.type}, i32, {mask.type})")
        given = f"{value.typed}, {place.typed}, i32 {element_bytes(value.kind)}, {mask.typed}"
        self.line(f"call void {name}({given})")

    def fma(self, a: Value, b: Value | float, c: Value | float) -> Value:
        return self.intrinsic("fma", a, b, c)

    def polynomial(self, x: Value, coefficients: tuple[float, ...]) -> Value:
        """Sum of coefficients[k] * x**k by Horner's rule in fused steps."""
        result = self.number(coefficients[-1], x)
        for c in reversed(coefficients[:-1]):
            result = self.fma(result, x, c)
        return result


def first_lanes(count: int, lanes: int) -> Value:
    """The mask of the first `count` lanes, as a constant."""
    flags = ", ".join(f"i1 {'true' if k < count else 'false'}" for k in range(lanes))
    return Value(f"<{flags}>", "i1", lanes)


def _masked(one: str, each: str, place: Value, kind: str, mask: Value) -> tuple[str, str]:
    """The name of an intrinsic, for `one` address or one for `each` element, and the type of its vectors."""
    scalar = {"float": "f32", "double": "f64", "half": "f16"}.get(kind, kind)
    what, where = (one, "p0") if place.lanes == 1 else (each, f"v{place.lanes}p0")
    return f"@llvm.masked.{what}.v{mask.lanes}{scalar}.{where}", Value("", kind, mask.lanes).type

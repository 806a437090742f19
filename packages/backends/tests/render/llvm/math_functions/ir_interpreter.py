"""An interpreter of the LLVM IR that elementary functions are written in, which notes every subnormal step.

Lanes of any number of vectors are computed at once, in numpy: what a processor with AVX-512 runs is so tried on any
other. Of the code that few lanes need, every lane runs all, and each is given what it asks for.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from framesmith_backends.render.llvm.builder import Builder, Value

Array = np.ndarray[Any, np.dtype[Any]]
TYPES = {"float": np.float32, "double": np.float64, "i32": np.int32, "i64": np.int64, "i1": np.bool_}
LEAST = {np.dtype(np.float32): 2.0**-126, np.dtype(np.float64): 2.0**-1022}

VECTOR = re.compile(r"<(\d+) x (\w+)>")
DEFINITION = re.compile(
    r"define internal .+? (?P<name>@fs\.\S+?)\((?P<given>.*?)\) noinline \{\n(?P<body>.*)\n\}", re.DOTALL
)
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
WHOLE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "ashr": np.right_shift,
}  # fmt: skip
FLOATING: dict[str, Callable[[Array, Array], Array]] = {
    "fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide,
}  # fmt: skip
ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "fabs": np.abs, "sqrt": np.sqrt, "rint": np.rint, "trunc": np.trunc, "floor": np.floor, "ceil": np.ceil,
}  # fmt: skip
LIBRARY: dict[str, Callable[..., Array]] = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "fmod": np.fmod,
}  # fmt: skip


def _exact_multiply(a: Array, b: Array) -> tuple[Array, Array]:
    """Doubles between 1/2 and 1 in size, or 0: their product of elements in two parts, rounded and lost."""
    split = 134217729.0
    high_a, high_b = a * split - (a * split - a), b * split - (b * split - b)
    low_a, low_b, rounded = a - high_a, b - high_b, a * b
    return rounded, ((high_a * high_b - rounded) + high_a * low_b + low_a * high_b) + low_a * low_b


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, nearly always rounded once."""
    if a.dtype == np.float32:
        found: Array = (a.astype(np.float64) * b + c).astype(np.float32)
        return found
    plain = a * b + c
    usual = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = (np.where(usual, x, 0.0) for x in np.broadcast_arrays(a, b, c))
    (one, of_a), (other, of_b) = np.frexp(a), np.frexp(b)
    matmul, lost = _exact_multiply(one, other)
    power = of_a + of_b
    third = np.ldexp(c, np.clip(-power, -2200, 2200))
    total = matmul + third
    back = total - matmul
    rest = (matmul - (total - back)) + (third - back)
    result = np.ldexp(total + (rest + lost), power)
    result = np.where(np.isfinite(third), result, c)
    return np.where(usual & (a != 0) & (b != 0), result, plain)


@dataclass
class Step:
    """An instruction, and the lanes in which its result is subnormal, or 0 where an exact one would not be."""

    text: str
    lanes: Array


@dataclass
class Interpreter:
    """The functions of a `Builder`, on arrays of shape (vectors, lanes)."""

    declared: dict[str, None]
    steps: list[Step] = field(default_factory=list)

    def run(self, lines: list[str], values: dict[str, Array]) -> dict[str, Array]:
        conditions: dict[str, Array] = {}
        for line in lines:
            if line.startswith("br i1"):
                condition, slow = matched(r"br i1 (%\w+), label %(\w+)\.slow", line)
                conditions[slow] = values[condition]
            elif " = " in line:
                name, text = line.split(" = ", 1)
                if text.startswith("phi"):
                    kind, first, join, second = matched(r"phi (.+) \[ (.+), %(\w+)\.here \], \[ (.+), %", text)
                    one, other = (read(f"{kind} {part}", values) for part in (first, second))
                    values[name] = np.where(conditions[join], other, one)
                else:
                    values[name] = self.step(text, values)
            else:
                assert line.startswith("br label") or line.endswith(":"), line
        return values

    def step(self, text: str, values: dict[str, Array]) -> Array:
        op, _, rest = text.partition(" ")
        if op == "call":
            return self.call(text, rest, values)
        if op in ("fadd", "fsub", "fmul", "fdiv"):
            rest = re.sub(r"^((contract|arcp) )+", "", rest)
            a, b = operands(rest, values)
            found = FLOATING[op](a, b)
            vanished = {"fmul": (a != 0) & (b != 0), "fdiv": (a != 0) & np.isfinite(b)}.get(op, np.bool_(False))
            return self.noted(text, found, vanished)
        if op == "fneg":
            return -operands(rest, values)[0]
        if op in ("fcmp", "icmp"):
            return compare(op, rest, values)
        if op in WHOLE:
            return WHOLE[op](*operands(rest, values))
        if op == "lshr":
            a, b = operands(rest, values)
            unsigned = {4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
            return np.right_shift(a.view(unsigned), b.astype(unsigned)).view(a.dtype)
        if op == "select":
            return np.where(*operands(rest, values))
        if op == "freeze":
            return operands(rest, values)[0]
        if op == "shufflevector":
            return shuffled(rest, values)
        return self.converted(op, text, rest, values)

    def converted(self, op: str, text: str, rest: str, values: dict[str, Array]) -> Array:
        given, target = rest.rsplit(" to ", 1)
        (a,) = operands(given, values)
        match = VECTOR.search(target)
        if match is None:
            return a  # a mask of lanes, whose bits stay separate
        kind = TYPES[match.group(2)]
        if op == "bitcast":
            found = a.view(kind)
            return (
                self.noted(text, found, np.bool_(False)) if found.dtype.kind == "f" and a.dtype.kind == "i" else found
            )
        if op == "fptrunc":
            return self.noted(text, a.astype(kind), a != 0)
        if op == "fptosi":
            with np.errstate(invalid="ignore"):
                return a.astype(kind)
        assert op in ("fpext", "sitofp", "zext", "sext"), text
        return a.astype(kind)

    def call(self, text: str, rest: str, values: dict[str, Array]) -> Array:
        name, given = matched(r"(?:<\d+ x \w+>|\w+) @([\w.]+)\((.*)\)$", rest)
        args = operands(given, values)
        if name.startswith("fs."):
            return self.other(f"@{name}", args)
        short = name.removeprefix("llvm.").split(".")[0]
        if short == "fma":
            found = fma(*args)
            wide = args[0].astype(np.float64) * args[1] + args[2]
            return self.noted(text, found, (wide != 0) & np.isfinite(wide))
        if short in ROUNDINGS:
            return ROUNDINGS[short](*args)
        if short == "copysign":
            return np.copysign(*args)
        if "mask.scalef" in name:
            a, power, _, mask, _ = args
            mask = np.broadcast_to(mask.astype(bool), a.shape)
            whole = np.clip(np.floor(np.nan_to_num(power)), -(2**20), 2**20).astype(np.int64)
            found = np.where(np.isnan(power), power, np.ldexp(a, whole))
            return self.noted(text, np.where(mask, found, a.dtype.type(0)), mask & (a != 0) & (power > -np.inf))
        if "permvar.sf" in name:
            table, index = args
            return table.reshape(-1)[index & 15]
        if "vpermi2var.ps" in name:
            table, index, second = args
            return np.concatenate([table.reshape(-1), second.reshape(-1)])[index & 31]
        raise NotImplementedError(text)

    def other(self, name: str, args: list[Array]) -> Array:
        """A call of a function of our own: of the library's in some lanes, or of code that is there once."""
        library = LIBRARY.get(name.split(".")[1].removesuffix("f"))
        if library is not None:
            where, *given, result = args
            return np.where(where, library(*(x.astype(np.float64) for x in given)).astype(result.dtype), result)
        for text in self.declared:
            match = DEFINITION.match(text)
            if match is not None and match["name"] == name:
                parameters = re.findall(r"%\w+", match["given"])
                lines = [line.strip() for line in match["body"].splitlines()]
                found = self.run(lines[:-1], dict(zip(parameters, args, strict=True)))
                return read(lines[-1].removeprefix("ret "), found)
        raise NotImplementedError(name)

    def noted(self, text: str, found: Array, vanished: Array) -> Array:
        """The result of a step, which is not 0 by itself where `vanished`."""
        size = np.abs(found)
        self.steps.append(Step(text, (size < LEAST[found.dtype]) & ((found != 0) | vanished)))
        return found


def matched(pattern: str, text: str) -> tuple[str, ...]:
    match = re.match(pattern, text)
    assert match is not None, text
    return match.groups()


def read(text: str, values: dict[str, Array]) -> Array:
    """A typed operand."""
    match = VECTOR.match(text)
    kind, what = (match.group(2), text[match.end() :].strip()) if match else text.split(" ", 1)
    if what.startswith("%"):
        return values[what]
    if what.startswith("<"):
        return np.array([number(part.split()[1], kind) for part in what[1:-1].split(",")], TYPES[kind])[None]
    splat = re.match(r"splat \(\w+ (\S+)\)", what)
    return np.array(number(splat.group(1) if splat else what, kind), TYPES.get(kind, np.int64)).reshape(1, 1)


def number(text: str, kind: str) -> float | int:
    if text in ("true", "false"):
        return text == "true"
    if text in ("zeroinitializer", "poison"):
        return 0
    if text.startswith("0x"):
        found: float = struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0]
        return found
    return int(text)


def operands(text: str, values: dict[str, Array]) -> list[Array]:
    """Operands, of which one without a type has that of the one before."""
    parts = re.findall(r"(?:[^,<(]|<[^>]*>|\([^)]*\))+", text)
    found, kind = [], ""
    for part in map(str.strip, parts):
        typed = re.match(r"(<\d+ x \w+>|float|double|i\d+)\s", part)
        kind = typed.group(1) if typed else kind
        found.append(read(part if typed else f"{kind} {part}", values))
    return found


def compare(op: str, rest: str, values: dict[str, Array]) -> Array:
    predicate, given = rest.split(" ", 1)
    a, b = operands(given, values)
    if op == "fcmp":
        unordered = np.isnan(a) | np.isnan(b)
        if predicate == "uno":
            return unordered
        found = COMPARISONS[predicate[1:]](a, b)
        return found | unordered if predicate[0] == "u" else found & ~unordered
    if predicate[0] == "u" and predicate[1:] in COMPARISONS:
        unsigned = {4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
        return COMPARISONS[predicate[1:]](a.view(unsigned), b.view(unsigned))
    return COMPARISONS[predicate.removeprefix("s") if predicate != "sle" else "le"](a, b)


def shuffled(rest: str, values: dict[str, Array]) -> Array:
    given, picks = matched(r"(.*), <\d+ x i32> (?:<(.*)>|zeroinitializer)$", rest)
    one, other = operands(given, values)
    assert picks is not None, rest
    both = one if other.shape[-1] == 1 else np.concatenate([one, other], -1)
    return both[:, [int(pick.split()[1]) for pick in picks.split(",")]]


def interpret(function: Callable[..., Value], *inputs: Array, scalef: bool, lanes: int) -> tuple[Array, list[Step]]:
    """The function of arrays of float32 or float64, of one length, and its steps, as flat arrays."""
    count = len(inputs[0])
    padded = [np.resize(x, (-(-count // lanes), lanes)) for x in inputs]
    kind = "float" if inputs[0].dtype == np.float32 else "double"
    b = Builder(vectors="avx512" if scalef else "")
    given = [Value(f"%x{k}", kind, lanes) for k in range(len(inputs))]
    result = function(b, *given)
    machine = Interpreter(b.declared)
    with np.errstate(all="ignore"):
        values = machine.run([str(line) for line in b.out], {v.text: x for v, x in zip(given, padded, strict=True)})
        found = np.broadcast_to(read(result.typed, values), padded[0].shape)
    shape = padded[0].shape
    for step in machine.steps:
        step.lanes = np.broadcast_to(step.lanes, shape).reshape(-1)[:count]
    return found.reshape(-1)[:count], machine.steps

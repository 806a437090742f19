"""PTX as instructions: registers with their widths, labels as indices, parameters, static memory.

What is not read here (debug sections, `.loc`) says nothing of what is computed; anything else unknown is an error.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

WIDTHS = {"pred": 1, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "b32": 32, "u32": 32, "s32": 32, "f32": 32,
          "b64": 64, "u64": 64, "s64": 64, "f64": 64, "b8": 8, "u8": 8, "s8": 8}  # fmt: skip


class PtxError(Exception):
    """Something that the emulator does not know, or text that is no PTX."""


class UnknownInstruction(PtxError):
    """An operation of which no form is known."""

    def __init__(self, message: str, operation: str) -> None:
        super().__init__(message)
        self.operation = operation


@dataclass(slots=True)
class Instruction:
    """`parts` are the operation's name cut at its dots; `guard` is a predicate and whether it has to be false."""

    parts: tuple[str, ...]
    operands: list[str]
    guard: tuple[str, bool] | None
    line: int
    text: str
    target: int = -1

    @property
    def name(self) -> str:
        return ".".join(self.parts)


@dataclass(slots=True)
class Program:
    """One kernel: `registers`, their widths in bits; `parameters`, their offsets and sizes, and which are `pointers`.

    `constants` are arrays of static global memory; `local` bytes of a thread's own memory and its name; `threads` of a
    block, as it requires.
    """

    name: str = ""
    instructions: list[Instruction] = field(default_factory=list)
    registers: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, tuple[int, int]] = field(default_factory=dict)
    pointers: set[str] = field(default_factory=set)
    labels: dict[str, int] = field(default_factory=dict)
    constants: dict[str, bytes] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    local: dict[str, tuple[int, int]] = field(default_factory=dict)
    local_bytes: int = 0
    threads: int = 0


_CONSTANT = re.compile(r"\.(?:global|const)\s+(?:\.align (\d+)\s+)?\.(\w+)\s+([\w$]+)\[(\d*)\]\s*=\s*\{([^}]*)\}")
_PARAMETER = re.compile(r"\.param\s+(?:\.align \d+\s+)?\.(\w+)(\s+\.ptr[^,]*)?\s+([\w$]+)\s*$")


def parse(text: str) -> Program:
    """The only kernel of the text, with the functions that it calls written out where it does."""
    text = re.sub(r"//[^\n]*", "", text)
    program = Program()
    found = re.search(r"\.visible \.entry ([\w$]+)\(([^)]*)\)\s*((?:\.\w+[^\n{]*\n)*)\{", text)
    if found is None:
        raise PtxError("no kernel")
    program.name = found[1]
    _parameters(program, found[2])
    threads = re.search(r"\.reqntid (\d+)", found[3]) or re.search(r"\.maxntid (\d+)", found[3])
    if threads is None:
        raise PtxError("the kernel does not say how many threads it has")
    program.threads = int(threads[1])
    for one in _CONSTANT.finditer(text):
        size = WIDTHS[one[2]] // 8
        values = [int(v, 0) & ((1 << 8 * size) - 1) for v in one[5].replace("\n", " ").split(",")]
        data = b"".join(v.to_bytes(size, "little") for v in values)
        program.constants[one[3]] = data.ljust(int(one[4] or len(values)) * size, b"\0")
    for shared in re.finditer(r"\.shared\s+\.align \d+\s+\.b8\s+([\w$]+)\[(\d*)\]", text):
        program.shared[shared[1]] = int(shared[2] or 0)
    functions = {f[2]: Function(_names(f[1]), _names(f[3]), f.end()) for f in _FUNCTION.finditer(text)}
    _Body(program, text, functions).read(found.end(), [{}])
    return program


@dataclass(frozen=True, slots=True)
class Function:
    """Names of results and parameters, and where the body begins."""

    results: list[str]
    parameters: list[str]
    start: int


_FUNCTION = re.compile(
    r"^\s*(?:\.visible |\.weak )?\.func\s*(?:\(([^)]*)\))?\s*([\w$]+)\s*\(([^)]*)\)\s*\{", re.MULTILINE
)


def _names(parameters: str | None) -> list[str]:
    return re.findall(r"([\w$]+)(?:\[\d+\])?\s*(?:,|$)", (parameters or "").strip())


def _parameters(program: Program, text: str) -> None:
    offset = 0
    for one in text.split(","):
        if not one.strip():
            continue
        found = _PARAMETER.search(one.strip())
        if found is None:
            raise PtxError(f"parameter {one.strip()!r}")
        size = WIDTHS[found[1]] // 8
        offset = -(-offset // size) * size
        program.parameters[found[3]] = (offset, size)
        if found[2]:
            program.pointers.add(found[3])
        offset += size


@dataclass
class _Body:
    """Reads statements up to the brace that closes the body; names of inner braces and of calls are made their own."""

    program: Program
    text: str
    functions: dict[str, Function]
    jumps: list[tuple[Instruction, str]] = field(default_factory=list)
    calls: int = 0

    def read(self, start: int, scopes: list[dict[str, str]], call: str = "") -> None:
        line = self.text.count("\n", 0, start) + 1
        statement, depth, outer = "", 0, len(scopes)
        for char in itertools.islice(self.text, start, None):
            if char == "\n":
                line += 1
                if statement.split()[:1] in ([".loc"], [".pragma"]):
                    statement = ""
                char = " "
            if char == "{" and not statement.strip():
                scopes.append({})
            elif char == "}" and depth == 0:
                if len(scopes) == outer:
                    break
                scopes.pop()
            elif char == ":" and depth == 0 and re.fullmatch(r"\s*[\w$]+", statement):
                self.program.labels[statement.strip() + call] = len(self.program.instructions)
                statement = ""
            elif char == ";":
                self._statement(statement.strip(), line, scopes, call)
                statement = ""
            else:
                depth += (char == "{") - (char == "}")
                statement += char
        if not call:
            for one, label in self.jumps:
                if label not in self.program.labels:
                    raise PtxError(f"no label {label}")
                one.target = self.program.labels[label]

    def _statement(self, text: str, line: int, scopes: list[dict[str, str]], call: str) -> None:
        kind = text.split()[0] if text else ""
        if kind in ("", ".loc", ".pragma", ".file", ".callprototype", ".shared"):
            return  # shared arrays are found before
        if kind == ".reg":
            self._registers(text, scopes, call)
        elif kind == ".param":  # of a call
            for name in _names(text):
                scopes[-1][name] = f"{name}@{len(self.program.instructions)}"
        elif kind == ".local":
            found = re.fullmatch(r"\.local\s+\.align (\d+)\s+\.b8\s+([\w$]+)\[(\d+)\]", text)
            if found is None:
                raise PtxError(text)
            align, size = int(found[1]), int(found[3])
            at = -(-self.program.local_bytes // align) * align
            self.program.local[found[2]] = (at, size)
            self.program.local_bytes = at + size
        else:
            one = _instruction(text, line, scopes)
            if one.parts[0] == "call" and (names := self._called(one)):
                self._written_out(names, one)
                return
            if one.parts[0] == "ret" and call:
                one.parts, one.operands = ("bra",), [f"end{call}"]
                self.jumps.append((one, f"end{call}"))
            elif one.parts[0] == "bra":
                self.jumps.append((one, one.operands[0] + call))
            self.program.instructions.append(one)

    def _called(self, one: Instruction) -> list[str]:
        names = [o for o in one.operands if not o.startswith("(")]
        return names if names and names[0] in self.functions else []

    def _written_out(self, names: list[str], one: Instruction) -> None:
        """The function's body, its parameters and results under the caller's names."""
        function = self.functions[names[0]]
        self.calls += 1
        call = f"@call{self.calls}"
        at = one.operands.index(names[0])
        results = _operands(one.operands[0][1:-1]) if at else []
        given = _operands(one.operands[at + 1][1:-1]) if len(one.operands) > at + 1 else []
        scope = dict(zip([*function.results, *function.parameters], [*results, *given], strict=True))
        self.read(function.start, [scope], call)
        self.program.labels[f"end{call}"] = len(self.program.instructions)

    def _registers(self, text: str, scopes: list[dict[str, str]], call: str) -> None:
        found = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text)
        if found is None:
            raise PtxError(text)
        width = WIDTHS[found[1]]
        for name in (one.strip() for one in found[2].split(",")):
            several = re.fullmatch(r"(%?[\w$]+)<(\d+)>", name)
            names = [f"{several[1]}{k}" for k in range(int(several[2]))] if several else [name]
            inner = f".{len(self.program.instructions)}" if len(scopes) > 1 else ""
            for one in names:
                if call or inner:
                    scopes[-1][one] = one + inner + call
                self.program.registers[one + inner + call] = width


def _instruction(text: str, line: int, scopes: list[dict[str, str]]) -> Instruction:
    found = re.fullmatch(r"(?:@(!?)([%\w.$]+)\s+)?([\w.:]+)\s*(.*)", text, re.DOTALL)
    if found is None:
        raise PtxError(f"line {line}: {text}")

    def own(name: str) -> str:
        return next((scope[name] for scope in reversed(scopes) if name in scope), name)

    rest = re.sub(r"%?[A-Za-z_$][\w$]*", lambda name: own(name[0]), found[4]) if any(scopes) else found[4]
    guard = (own(found[2]), found[1] == "!") if found[2] else None
    return Instruction(tuple(found[3].split(".")), _operands(rest), guard, line, " ".join(text.split()))


def _operands(text: str) -> list[str]:
    """Cut at commas that stand in no brackets."""
    found, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "[{(") - (char in "]})")
        if char == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*found, last] if last else found

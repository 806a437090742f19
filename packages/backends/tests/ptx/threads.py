"""Threads of a grid that go through a program together: registers as arrays, lowest program counter first, barriers.

All threads of as many blocks as fit are run at once. Where they part, those with the lowest program counter go on,
which are met by the others there. A register that was never written reads as a number that is not a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ptx import carries
from ptx.instructions import OPERANDS, ROWS, compared, converted
from ptx.memory import LOCAL, PARAMETERS, SHARED, GlobalSpace, Space
from ptx.numbers import HOLDERS, TYPES, bf16_of, of_bf16
from ptx.program import WIDTHS, Instruction, Program, PtxError, UnknownInstruction
from ptx.races import LANES, Clock, Fault, Meetings, Races
from ptx.warps import HELD, RUNNING, gathered, is_together

Array = np.ndarray[Any, Any]
_POISON = {16: 0x7FED, 32: 0x7FEDBEEF, 64: 0x7FFDBEEF7FEDBEEF, 8: 0xED}


class Failed(Exception):
    """A fault, with the kernel, the line of its PTX, block and thread."""


@dataclass(slots=True)
class Threads:
    """`blocks` of the grid from `first` on, at the beginning of the program."""

    program: Program
    memory: GlobalSpace
    parameters: bytes
    first: int
    blocks: int
    grid: int
    shared_bytes: int
    unit: int
    started: int = 1
    registers: dict[str, Array] = field(default_factory=dict)
    active: Array = field(init=False)
    whole: bool = True
    pc: Array = field(init=False)
    state: Array = field(init=False)
    clock: Clock = field(init=False)
    shared: Space = field(init=False)
    local: Space | None = None
    numbers: Array = field(init=False)
    symbols: dict[str, int] = field(default_factory=dict)
    pending: list[Any] = field(default_factory=list)
    committed: Array = field(init=False)
    flags: Array = field(init=False)
    decoded: dict[int, Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count, block = self.blocks * self.program.threads, self.program.threads
        first = self.first * block
        self.numbers = np.arange(first, first + count, dtype=np.int64)
        self.active = np.arange(count)
        self.pc, self.state = np.zeros(count, np.int32), np.zeros(count, np.int8)
        self.committed, self.flags = np.zeros(count, np.int32), np.full(count, carries.NOTHING, np.int8)
        met = np.full(self.blocks, self.started, np.int32)
        warps = -(-count // LANES)
        lanes = Meetings(warps, self.started), Meetings(warps, self.started)
        self.clock = Clock(block, first, met, *lanes, np.zeros(count, bool), self.started)
        at = 0
        for name, size in self.program.shared.items():
            at = -(-at // 16) * 16
            self.symbols[name] = SHARED + at
            at += size or self.shared_bytes
        self.shared = Space("shared", SHARED, at, self.blocks, self.unit, lambda t: (t - first) // block, None)
        self.shared.known = np.zeros(len(self.shared.data) // self.unit, bool)
        self.shared.races = Races(len(self.shared.data) // self.unit, False)
        if self.program.local_bytes:
            self.local = Space("local", LOCAL, self.program.local_bytes, count, 1, lambda t: t - first, None)
            self.local.known = np.zeros(len(self.local.data), bool)
        self.symbols |= {name: LOCAL + at for name, (at, _) in self.program.local.items()}
        self.symbols |= {name: PARAMETERS + at for name, (at, _) in self.program.parameters.items()}
        self.symbols |= {name: self.memory.constant_address(name) for name in self.program.constants}

    # Going through the program.

    def run(self) -> None:
        from ptx.operations import OPERATIONS

        code = self.program.instructions
        while True:
            running = self.state == RUNNING
            if not running.any():
                if (self.state == HELD).any():
                    at = int(np.flatnonzero(self.state == HELD)[0])
                    message = "waits for others of its warp, which never come"
                    raise Failed(self._described(code[self.pc[at]], int(self.numbers[at]), message))
                self._check_suspects()
                return  # whoever waits at a barrier is let go on once nobody is to come
            here = self.pc[running]
            low = int(here.min())
            others = here[here > low]
            limit = int(others.min()) if len(others) else len(code)
            self.active = (
                np.flatnonzero(running & (self.pc == low))
                if len(others) or not running.all()
                else np.arange(len(self.pc))
            )
            self.whole = len(self.active) == len(self.pc)
            at = low
            while at < limit:
                one = code[at]
                operation = OPERATIONS.get(one.parts[0])
                self.clock.at = one
                try:
                    with np.errstate(all="ignore"):
                        if is_together(one) and not gathered(self, one, at):
                            break
                        if operation is not None:
                            stays = operation(self, one, at)
                        else:
                            self._compute(one)
                            stays = True
                except Fault as fault:
                    raise Failed(self._described(one, fault.thread, str(fault))) from fault
                except (PtxError, KeyError, IndexError, TypeError, ValueError) as error:
                    message = error if isinstance(error, PtxError) else f"unknown instruction or form of it ({error!r})"
                    message = f"{self.program.name}, line {one.line}: {one.text}: {message}"
                    if isinstance(error, UnknownInstruction):
                        raise UnknownInstruction(message, one.name) from error
                    raise PtxError(message) from error
                self.clock.now += 1
                if not stays:
                    break
                at += 1
            else:
                if at >= len(code):
                    raise PtxError(f"{self.program.name}: goes on behind its end")
                self.pc[self.active] = at

    def _check_suspects(self) -> None:
        """Writes over what others of a block may read late: nothing but a race where these others do anything."""
        for one, fault in self.clock.suspects:
            mine = slice((fault.thread - self.clock.first) // self.clock.block * self.clock.block, None)
            acted = self.clock.acted[mine][: self.clock.block].copy()
            writers = [f.thread - self.clock.first - mine.start for _, f in self.clock.suspects]
            acted[[w for w in writers if 0 <= w < self.clock.block]] = False
            if acted.any():
                raise Failed(self._described(one, fault.thread, str(fault))) from fault

    def _described(self, one: Instruction, thread: int, what: str) -> str:
        block, number = divmod(thread, self.program.threads)
        return f"{self.program.name}, line {one.line}, block {block}, thread {number}: {one.text}: {what}"

    # Registers.

    def mask(self, one: Instruction) -> Array | None:
        """Return the active threads for which the instruction's guard holds; None for all."""
        if one.guard is None:
            return None
        name, negated = one.guard
        found = np.broadcast_to(np.asarray(self.read(name, "pred")), self.active.shape)
        found = ~found if negated else found
        return None if found.all() else found

    def read(self, operand: str, kind: str) -> Array:
        """The operand of the active threads as that type; numbers that stand in the program as one for all."""
        if kind == "pred":
            return self._predicate(operand)
        whole = self.registers.get(operand)
        if whole is None and operand in self.program.registers:
            bits = self.program.registers[operand]
            whole = self.registers[operand] = np.full(len(self.pc), _POISON[bits], HOLDERS[bits])
        if whole is None:
            return self._constant(operand, kind)
        found = whole if self.whole else whole[self.active]
        wanted = np.dtype(TYPES[kind])
        if wanted.itemsize < found.dtype.itemsize:
            found = found.astype(HOLDERS[8 * wanted.itemsize])
        elif wanted.itemsize > found.dtype.itemsize:
            raise PtxError(f"{operand} has fewer bits than {kind}")
        return found.view(wanted)

    def _predicate(self, operand: str) -> Array:
        if operand in ("-1", "1"):
            return np.asarray(True)
        if operand == "0":
            return np.asarray(False)
        negated = operand.startswith("!")
        whole = self.registers.get(operand.lstrip("!"))
        if whole is None:
            raise PtxError(f"predicate {operand} was never written")
        found = whole if self.whole else whole[self.active]
        return ~found if negated else found

    def _constant(self, operand: str, kind: str) -> Array:
        wanted = TYPES[kind]
        holder = HOLDERS[8 * np.dtype(wanted).itemsize]
        if operand.startswith("0f"):
            return np.asarray(np.uint32(int(operand[2:], 16)).astype(holder).view(wanted))
        if operand.startswith("0d"):
            return np.asarray(np.uint64(int(operand[2:], 16)).astype(holder).view(wanted))
        if operand.startswith("%"):
            return self._special(operand).astype(holder).view(wanted)
        if operand in self.symbols:
            return np.asarray(holder(self.symbols[operand]).view(wanted))
        number = int(operand.rstrip("U"), 0)
        return np.asarray(holder(number & ((1 << 8 * np.dtype(holder).itemsize) - 1)).view(wanted))

    def _special(self, name: str) -> Array:
        block = self.program.threads
        own = self.numbers[self.active]
        rows = {
            "%tid.x": lambda: own % block, "%ctaid.x": lambda: own // block, "%laneid": lambda: own % block % 32,
            "%warpid": lambda: own % block // 32,
        }  # fmt: skip
        if name in rows:
            return np.asarray(rows[name]().astype(np.uint32))
        sizes = {"%ntid.x": block, "%nctaid.x": self.grid}
        fixed = {f"%{kind}.{axis}": int("n" in kind) for kind in ("tid", "ctaid", "ntid", "nctaid") for axis in "yz"}
        fixed = {name: 1 if name[1] == "n" else 0 for name in fixed} | sizes
        if name not in fixed:
            raise PtxError(f"unknown register {name}")
        return np.asarray(np.uint32(fixed[name]))

    def write(self, register: str, value: Array, where: Array | None = None) -> None:
        """The value of each active thread, of those `where` it holds."""
        if register == "_":
            return
        value = np.asarray(value)
        bits = self.program.registers[register]
        if bits == 1:
            value, kind = value.astype(bool), np.dtype(bool)
        else:
            kind = np.dtype(HOLDERS[bits])
            if value.dtype.itemsize != kind.itemsize:
                value = value.astype(f"{'i' if value.dtype.kind == 'i' else 'u'}{kind.itemsize}")
            value = value.view(kind)
        if self.whole and where is None:
            count = len(self.pc)
            self.registers[register] = value if value.shape == (count,) else np.broadcast_to(value, count).copy()
            return
        whole = self.registers.get(register)
        if whole is None:
            poison = False if bits == 1 else _POISON[bits]
            whole = np.full(len(self.pc), poison, kind)
        else:
            whole = whole.copy()  # what was read of it may be in use
        at = self.active if where is None else self.active[where]
        whole[at] = value if value.ndim == 0 or where is None else value[where]
        self.registers[register] = whole

    def elements(self, operand: str) -> list[str]:
        """Registers of a vector, or the one."""
        return [part.strip() for part in operand[1:-1].split(",")] if operand.startswith("{") else [operand]

    def address(self, operand: str) -> Array:
        """That in brackets, for each active thread."""
        inner = operand.strip("[] ")
        base, _, offset = inner.partition("+")
        base = base.strip()
        bits = self.program.registers.get(base)
        found = self.read(base, "b64" if bits is None else f"b{bits}").astype(np.int64)
        found = found + int(offset.strip() or "0", 0)
        return np.broadcast_to(found, self.active.shape)

    def _compute(self, one: Instruction) -> None:
        name, kind = one.parts[0], one.parts[-1]
        if carries.is_carried(one):
            carries.compute(self, one)
            return
        if name not in ROWS and name not in ("setp", "cvt"):
            raise UnknownInstruction("unknown instruction", one.name)
        where = self.mask(one)
        target, *operands = one.operands
        if name == "setp":
            self._compare(one, target, operands, where)
            return
        if name == "cvt":
            found = converted(one.parts, lambda k: self.read(operands[0], k), lambda k: self.read(operands[1], k))
            self.write(target, found, where)
            return
        if kind == "pred":
            found = ROWS[name](one.parts, [self.read(o, "pred") for o in operands])
        elif kind in ("bf16", "bf16x2", "f16x2", "s16x2", "u16x2"):
            found = self._halves(one, operands)
        else:
            if kind not in TYPES:
                raise PtxError(f"unknown type {kind}")
            special = OPERANDS.get(name, {})
            kinds = [special.get(k, kind) for k in range(len(operands))]
            if name in ("mul", "mad") and "wide" in one.parts and len(operands) == 3:
                kinds[2] = f"{kind[0]}{2 * WIDTHS[kind]}"
            found = ROWS[name](one.parts, [self.read(o, k) for o, k in zip(operands, kinds)])
        self.write(target, found, where)

    def _compare(self, one: Instruction, target: str, operands: list[str], where: Array | None) -> None:
        """setp: one number, to a predicate and its opposite; or a pair, to a predicate each."""
        kind = one.parts[-1]
        first, _, second = target.partition("|")
        if kind.endswith("x2"):
            if len(operands) != 2:
                raise PtxError("unknown form of comparison")
            bits = [np.asarray(self.read(o, "b32")) for o in operands]
            for k, predicate in enumerate((first, second)):
                part = [(b >> np.uint32(16 * k)).astype(np.uint16) for b in bits]
                given = [of_bf16(p) if kind == "bf16x2" else p.view(TYPES[kind[:-2]]) for p in part]
                self.write(predicate, compared(one.parts, given), where)
            return
        kinds = [OPERANDS["setp"].get(k, kind) for k in range(len(operands))]
        given = [of_bf16(self.read(o, "b16")) if k == "bf16" else self.read(o, k) for o, k in zip(operands, kinds)]
        found = compared(one.parts, given)
        self.write(first, found, where)
        if second:
            self.write(second, ~found, where)

    def _halves(self, one: Instruction, operands: list[str]) -> Array:
        """Arithmetic of bfloat16, computed in float32, and of pairs of numbers."""
        kind = one.parts[-1]
        if one.parts[0] not in ("add", "sub", "mul", "fma", "min", "max", "neg", "abs"):
            raise PtxError("unknown arithmetic of low-precision types")
        bits = [np.asarray(self.read(o, "b32" if kind.endswith("x2") else "b16")) for o in operands]
        found = []
        for k in range(2 if kind.endswith("x2") else 1):
            part = [(b >> b.dtype.type(16 * k)).astype(np.uint16) for b in bits]
            if kind.endswith("16x2") and kind != "bf16x2":
                single = kind[:-2]
                result = ROWS[one.parts[0]]((*one.parts[:-1], single), [p.view(TYPES[single]) for p in part])
                found.append(np.asarray(result).view(np.uint16))
            else:
                wide = (*one.parts[:-1], "f32")
                found.append(bf16_of(np.asarray(ROWS[one.parts[0]](wide, [of_bf16(p) for p in part]))))
        return (
            found[0] if len(found) == 1 else found[0].astype(np.uint32) | (found[1].astype(np.uint32) << np.uint32(16))
        )

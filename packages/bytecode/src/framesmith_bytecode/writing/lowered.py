"""The running CPython's instructions under construction, with their labels, constants, names and slots."""

from __future__ import annotations

from typing import TypeAlias

from framesmith_bytecode.analyses.borrow import borrowable
from framesmith_bytecode.analyses.bound import possibly_unbound
from framesmith_bytecode.analyses.resumed import raises_before_resume
from framesmith_bytecode.analyses.spans import BytecodeError, describe
from framesmith_bytecode.analyses.stack import StackStates
from framesmith_bytecode.cpython.opcodes import BORROWS, OPCODES, UNCHECKED_FAST
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Label, Position
from framesmith_bytecode.writing.constants import ConstantPool

# One instruction of the running CPython: opcode, operand (or the jump's target), position.
Unit: TypeAlias = tuple[int, int | Label, Position | None]


class Lowered:
    """State of lowering one function; `index`: the current item, `last_op`: the operation before it.

    `run`: the labels directly before the item; `run_falls`: control falls through into them. `loop_exits`,
    `send_exits`: the target of a FOR_ITER or SEND -> the label to which that instruction jumps. `tail`: exits of loops
    that leave backward, written at the end. `exits`: the units of loops' exits -> the item of their FOR_ITER.
    `implied`: the unit of each NOT_TAKEN -> the item of its jump; `not_taken`: the last of them. `wait_ends`: a
    JUMP_NO_INTERRUPT -> the unit after it.
    """

    def __init__(self, bytecode: Bytecode, states: StackStates) -> None:
        self.bytecode = bytecode
        self.stack_states = states
        self.units: list[Unit] = []
        self.labels: dict[Label, int] = {}
        self.consts = ConstantPool(bytecode.consts)
        self.names = list(bytecode.names)
        self.name_indices = {name: i for i, name in reversed(list(enumerate(bytecode.names)))}
        self.slots = slot_indices(bytecode)
        self.cells = {name: self.slots[name] for name in (*bytecode.cellvars, *bytecode.freevars)}
        self.unbound = possibly_unbound(bytecode, states) if UNCHECKED_FAST else set()
        self.borrowable = borrowable(bytecode, states) if BORROWS else set()
        self.deepest = states.deepest
        self.not_taken = -2
        self.barrier = 0
        self.last_op = ""
        self.index = 0
        self.run: list[Label] = []
        self.run_falls = False
        self.exits: dict[int, int] = {}
        self.implied: dict[int, int] = {}
        self.wait_ends: dict[int, int] = {}
        self.loop_exits: dict[Label, tuple[Label, Position | None, int]] = {}
        self.send_exits: dict[Label, Label] = {}
        self.tail: list[tuple[Label, Label, Position | None, int]] = []
        self._jump_targets: set[Label] | None = None

    def put(self, name: str, arg: int | Label, position: Position | None) -> None:
        """Append an instruction by its version name."""
        self.units.append((OPCODES[name], arg, position))

    def resume_first(self, start: int) -> None:
        """Append the RESUME that a frame needs before item `start` if something may raise before its own."""
        if TABLE.resume_first and raises_before_resume(self.bytecode, self.stack_states, self.unbound, start):
            line = self.bytecode.firstlineno
            self.put("RESUME", 0, Position(line, line, 0, 0))

    def reserve(self, slots: int) -> None:
        """Slots above those before the item that its instructions need meanwhile."""
        self.deepest = max(self.deepest, (self.stack_states.before[self.index] or 0) + slots)

    def loop_of_handler(self) -> Label | None:
        """The end of the wait in the loop over a GET_ANEXT whose exceptions come to this item."""
        items, regions = self.bytecode.instructions, self.bytecode.regions
        for span in self.stack_states.spans:
            if regions[span.key].handler not in self.run:
                continue
            first = next((i for i in items[span.start :] if isinstance(i, Instr)), None)
            if first is not None and first.op == "GET_ANEXT":
                after = next((unit for index, unit in self.wait_ends.items() if index > span.start), None)
                if after is not None:
                    label = Label("next")
                    self.labels[label] = after
                    return label
        return None

    def name_index(self, name: str) -> int:
        """Index in `co_names`; the name is added if missing."""
        index = self.name_indices.get(name)
        if index is None:
            index = self.name_indices[name] = len(self.names)
            self.names.append(name)
        return index

    def slot(self, name: str) -> int:
        """Index of a variable's slot in the frame."""
        try:
            return self.slots[name]
        except KeyError:
            raise self.fail(f"{name!r} is not a variable of this function") from None

    def cell(self, name: str) -> int:
        """Index of a cell or free variable's slot in the frame."""
        try:
            return self.cells[name]
        except KeyError:
            raise self.fail(f"{name!r} is neither a cell nor a free variable of this function") from None

    def fail(self, problem: str) -> BytecodeError:
        """An error that names the item being written."""
        return BytecodeError(f"{self.bytecode.name}: {describe(self.bytecode.instructions, self.index)}: {problem}")

    def previous(self, name: str, position: Position | None, back: int = 1) -> bool:
        """Whether the unit `back` units ago is this opcode at this position, with no label since."""
        at = len(self.units) - back
        if at < self.barrier or at < 0:
            return False
        opcode, _, where = self.units[at]
        return opcode == OPCODES[name] and where == position

    def is_jump_target(self, labels: list[Label]) -> bool:
        """Whether another instruction than SEND leads to one of the labels."""
        if self._jump_targets is None:
            self._jump_targets = {region.handler for region in self.bytecode.regions}
            self._jump_targets.update(
                item.arg
                for item in self.bytecode.instructions
                if isinstance(item, Instr) and isinstance(item.arg, Label) and item.op != "SEND"
            )
        return not self._jump_targets.isdisjoint(labels)


def slot_indices(bytecode: Bytecode) -> dict[str, int]:
    """Slot of every variable: locals, then cells that are no locals, then free variables."""
    slots: dict[str, int] = {}
    for name in (*bytecode.varnames, *bytecode.cellvars):
        slots.setdefault(name, len(slots))
    for name in bytecode.freevars:
        slots[name] = len(slots)
    return slots

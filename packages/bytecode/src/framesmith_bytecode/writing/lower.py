"""From canonical instructions to the running CPython's: `lower`.

Operations with one opcode of their own are translated here by a table, the others by their row of `WRITERS`.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from framesmith_bytecode.analyses.stack import StackStates
from framesmith_bytecode.cpython.opcodes import OPCODES
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.model.bytecode import Bytecode, Label, Position
from framesmith_bytecode.model.ops import OPS
from framesmith_bytecode.writing.lowered import Lowered
from framesmith_bytecode.writing.writers import WRITERS

_FALLS_NOT: Final = frozenset(
    OPCODES[name]
    for name in ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
                 "JUMP_BACKWARD_NO_INTERRUPT")
    if name in OPCODES
)  # fmt: skip
_NONE, _NUMBER, _NAME, _LOCAL, _CELL = range(5)
_KINDS: Final = {"none": _NONE, "count": _NUMBER, "index": _NUMBER, "name": _NAME, "local": _LOCAL, "deref": _CELL}
_PLAIN: Final = {op: (_KINDS[OPS[op].operand], OPCODES[op]) for op in OPS if op not in WRITERS}


def _prologue(low: Lowered) -> None:
    """The instructions that set up cells and free variables, which the canonical form leaves out."""
    if low.bytecode.freevars:
        low.put("COPY_FREE_VARS", len(low.bytecode.freevars), None)
    for name in low.bytecode.cellvars:
        low.put("MAKE_CELL", low.slot(name), None)
    if not low.bytecode.is_generator:
        low.resume_first(0)
    low.barrier = len(low.units)


def _put_loop_exit(low: Lowered, through: list[Label], position: Position | None, loop: int) -> None:
    for label in through:
        low.labels[label] = len(low.units)
    for name in TABLE.for_exit:
        low.exits[len(low.units)] = loop
        low.put(name, 0, position)


def _place_run(low: Lowered) -> None:
    """Bind the labels of `low.run`, after the exits of the loops that end here."""
    low.run_falls = bool(low.units) and low.units[-1][0] not in _FALLS_NOT
    if low.run_falls and low.not_taken == len(low.units) - 1:
        for label in low.run[:-1]:  # a region ends or begins before the implied NOT_TAKEN
            low.labels.setdefault(label, low.not_taken)
    leaving = [low.loop_exits[label] for label in low.run if label in low.loop_exits]
    if leaving:
        for label in takewhile(lambda label: label not in low.loop_exits, low.run):
            if label not in low.labels and not low.is_jump_target(
                [label]
            ):  # it bounds a region and may precede the exit
                low.labels[label] = len(low.units)
        around = Label()
        if low.run_falls and TABLE.for_exit:
            low.put("JUMP_FORWARD", around, low.units[-1][2])
        _put_loop_exit(low, [through for through, _, _ in leaving], *leaving[0][1:])
        low.labels[around] = len(low.units)
    for label in low.run:
        low.labels.setdefault(label, len(low.units))
    low.barrier = len(low.units)
    # A label that only bounds a region keeps the facts about the stack's top; other labels join paths.
    if not low.bytecode.regions or low.is_jump_target(low.run):
        low.last_op = ""


def _check_sends(low: Lowered, op: str) -> None:
    if op != "END_SEND" and any(label in low.send_exits for label in low.run):
        raise low.fail("SEND must lead to an END_SEND")


def _lower_items(low: Lowered) -> None:
    units, run = low.units, low.run
    plain, writers = _PLAIN, WRITERS
    regions = low.bytecode.regions if TABLE.errors_look_back else []
    boundaries = {label for region in regions for label in (region.start, region.end)}
    for index, item in enumerate(low.bytecode.instructions):
        if isinstance(item, Label):
            run.append(item)
            continue
        low.index = index
        op, arg, position = item
        if run:
            _place_run(low)
            if low.send_exits:
                _check_sends(low, op)
            if op in TABLE.errors_look_back and not boundaries.isdisjoint(run):
                low.put("NOP", 0, position)  # so that the unit before is in the same region
        row = plain.get(op)
        if row is None:
            writers[op](low, arg, position)
        else:
            kind, opcode = row
            if kind == _CELL:
                operand = low.cell(arg)
            elif kind == _LOCAL:
                operand = low.slot(arg)
            elif kind == _NAME:
                operand = low.name_index(arg)
            else:
                operand = arg or 0
            units.append((opcode, operand, position))
        low.last_op = op
        if run:
            run.clear()
    if run:
        _place_run(low)


def lower(bytecode: Bytecode, states: StackStates) -> Lowered:
    """Translate all instructions; raises `BytecodeError` for instructions that the running CPython cannot express."""
    low = Lowered(bytecode, states)
    _prologue(low)
    _lower_items(low)
    for through, label, position, loop in low.tail:
        _put_loop_exit(low, [through], position, loop)
        low.put("JUMP_BACKWARD", label, position)
    return low

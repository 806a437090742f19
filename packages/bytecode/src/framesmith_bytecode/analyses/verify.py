"""The verifier of a `Bytecode`: `verify`."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from framesmith_bytecode.analyses.header import check_header, check_types
from framesmith_bytecode.analyses.slots import CELL, NULL
from framesmith_bytecode.analyses.spans import BytecodeError, describe, label_indices
from framesmith_bytecode.analyses.stack import StackStates
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Item, Label, expect_bytecode, why_not_instruction
from framesmith_bytecode.model.ops import OPS


def _problem(bytecode: Bytecode, index: int, text: str) -> str:
    return f"{bytecode.name}: {describe(bytecode.instructions, index)}: {text}"


def _operand_problems(bytecode: Bytecode) -> Iterator[str]:
    for index, item in enumerate(bytecode.instructions):
        if isinstance(item, Instr):
            wrong = why_not_instruction(item.op, item.arg)
            if wrong is not None:
                yield _problem(bytecode, index, wrong)


def _label_problems(bytecode: Bytecode) -> Iterator[str]:
    labels = label_indices(bytecode)
    for index, item in enumerate(bytecode.instructions):
        if isinstance(item, Instr) and isinstance(item.arg, Label) and item.arg not in labels:
            yield _problem(bytecode, index, "its label is not in the instructions")
    for key, region in enumerate(bytecode.regions):
        for part, label in (("start", region.start), ("end", region.end), ("handler", region.handler)):
            if label not in labels:
                yield f"{bytecode.name}: the {part} label of region {key} is not in the instructions"
                return


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {known}"


def _variable_problems(bytecode: Bytecode) -> Iterator[str]:
    cells = [*bytecode.cellvars, *bytecode.freevars]
    known = [*bytecode.varnames, *cells]
    for index, item in enumerate(bytecode.instructions):
        if not isinstance(item, Instr):
            continue
        operand = OPS[item.op].operand
        if operand == "deref" and item.arg not in cells:
            what = "a plain local, not a cell" if item.arg in bytecode.varnames else "no cell or free variable"
            yield _problem(bytecode, index, f"{item.arg!r} is {what}{_nearest(item.arg, cells)}")
        elif operand == "local" and item.arg not in known:
            yield _problem(bytecode, index, f"{item.arg!r} is no variable of this function{_nearest(item.arg, known)}")


def _cell_problems(bytecode: Bytecode, states: StackStates) -> Iterator[str]:
    """A cell variable's slot must hold its cell at each instruction that uses it."""
    cells = {*bytecode.cellvars, *bytecode.freevars}
    if not cells:
        return
    for index, item in enumerate(bytecode.instructions):
        if states.before[index] is None or not isinstance(item, Instr):
            continue
        if item.arg.__class__ is not str or item.arg not in cells or item.arg in states.displaced_cells_at(index):
            continue
        if item.op == "STORE_FAST" and not states.kinds(index)[-1] & (CELL | NULL):
            yield _problem(bytecode, index, "would put a plain value where the cell belongs; use STORE_DEREF")
        elif item.op in ("LOAD_FAST", "LOAD_FAST_CHECK", "DELETE_FAST"):
            yield _problem(bytecode, index, "reaches past the cell; use the _DEREF operation")


def _send_problems(bytecode: Bytecode, states: StackStates) -> Iterator[str]:
    items: list[Item] = bytecode.instructions
    for index, item in enumerate(items):
        if isinstance(item, Instr) and item.op == "SEND":
            target = states.labels[item.arg]
            following = next((i for i in items[target:] if isinstance(i, Instr)), None)
            if following is None or following.op != "END_SEND":
                yield _problem(bytecode, index, "its label must stand before an END_SEND")


def problems(bytecode: Bytecode) -> list[str]:
    """Descriptions of all problems; empty for a sound function. Later checks run only if earlier ones pass."""
    expect_bytecode(bytecode, "problems")
    try:
        check_types(bytecode)
    except BytecodeError as error:
        return [str(error)]
    for check in (_operand_problems, _label_problems, _variable_problems):
        try:
            found = list(check(bytecode))
        except BytecodeError as error:
            found = [str(error)]
        if found:
            return found
    try:
        check_header(bytecode)
        states = stack_states(bytecode)
    except BytecodeError as error:
        return [str(error)]
    return [*_cell_problems(bytecode, states), *_send_problems(bytecode, states)]


def verify(bytecode: Bytecode) -> None:
    """Raise `BytecodeError` with the first problem and the number of the others."""
    expect_bytecode(bytecode, "verify")
    found = problems(bytecode)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise BytecodeError(found[0] + more)

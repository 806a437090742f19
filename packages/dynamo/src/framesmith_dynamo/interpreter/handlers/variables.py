"""Local variables and cells."""

from __future__ import annotations

from framesmith_bytecode import Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.functions.cells import CellValue


@interprets("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(frame: Frame, instr: Instr) -> None:
    """Push a local."""
    value = frame.locals.get(instr.arg)
    if value is None:
        frame.raise_(UnboundLocalError, _unbound(instr.arg))
    frame.stack.append(value)


def _unbound(name: str) -> str:
    return f"cannot access local variable '{name}' where it is not associated with a value"


@interprets("STORE_FAST")
def store_fast(frame: Frame, instr: Instr) -> None:
    """Pop into a local; NULL unbinds it."""
    value = frame.stack.pop()
    if value is None:
        frame.locals.pop(instr.arg, None)
    elif isinstance(value, CellValue) and frame.has_cell(instr.arg):
        frame.cells[instr.arg] = value
    else:
        frame.locals[instr.arg] = value


@interprets("DELETE_FAST")
def delete_fast(frame: Frame, instr: Instr) -> None:
    """Unbind a local."""
    if frame.locals.pop(instr.arg, None) is None:
        frame.raise_(UnboundLocalError, _unbound(instr.arg))


@interprets("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(frame: Frame, instr: Instr) -> None:
    """Push the raw slot of a local, or NULL, and unbind it: an inlined comprehension borrows the name."""
    if frame.has_cell(instr.arg) and instr.arg not in frame.locals:
        frame.stack.append(frame.cell(instr.arg))
    else:
        frame.stack.append(frame.locals.pop(instr.arg, None))


@interprets("MAKE_CELL")
def make_cell(frame: Frame, instr: Instr) -> None:
    """Put the slot's value into a new cell."""
    cell = CellValue()
    frame.journal.track_new(cell)
    held = frame.locals.pop(instr.arg, None)
    if held is not None:
        cell.store(frame, held)
    frame.cells[instr.arg] = cell


@interprets("LOAD_DEREF")
def load_deref(frame: Frame, instr: Instr) -> None:
    """Push the contents of a cell."""
    value = frame.cell(instr.arg).load(frame)
    if value is None:
        free = f"cannot access free variable '{instr.arg}' where it is not associated with a value in enclosing scope"
        if instr.arg in frame.code.bytecode.freevars:
            frame.raise_(NameError, free)
        frame.raise_(UnboundLocalError, _unbound(instr.arg))
    frame.stack.append(value)


@interprets("STORE_DEREF")
def store_deref(frame: Frame, instr: Instr) -> None:
    """Pop into a cell."""
    frame.cell(instr.arg).store(frame, frame.pop())


@interprets("DELETE_DEREF")
def delete_deref(frame: Frame, instr: Instr) -> None:
    """Empty a cell."""
    cell = frame.cell(instr.arg)
    if cell.load(frame) is None:
        frame.raise_(UnboundLocalError, _unbound(instr.arg))
    cell.delete(frame)


@interprets("LOAD_CLOSURE")
def load_closure(frame: Frame, instr: Instr) -> None:
    """Push the cell itself."""
    frame.stack.append(frame.cell(instr.arg))

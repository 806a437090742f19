"""Stack manipulation, constants, and instructions without effect here."""

from __future__ import annotations

from framesmith_bytecode import Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets


@interprets("NOP", "RESUME")
def nothing(frame: Frame, instr: Instr) -> None:
    """Line markers."""


@interprets("POP_TOP")
def pop_top(frame: Frame, instr: Instr) -> None:
    frame.stack.pop()


@interprets("PUSH_NULL")
def push_null(frame: Frame, instr: Instr) -> None:
    """Push the empty slot of a call."""
    frame.stack.append(None)


@interprets("COPY")
def copy(frame: Frame, instr: Instr) -> None:
    """Push the n-th value again."""
    frame.stack.append(frame.stack[-instr.arg])


@interprets("SWAP")
def swap(frame: Frame, instr: Instr) -> None:
    """Exchange the top with the n-th value."""
    stack, n = frame.stack, instr.arg
    stack[-1], stack[-n] = stack[-n], stack[-1]


@interprets("LOAD_CONST")
def load_const(frame: Frame, instr: Instr) -> None:
    """Push a constant; one value per instruction and trace."""
    constants = frame.state.constants
    value = constants.get(id(instr))
    if value is None:
        value = constants[id(instr)] = frame.constant(instr.arg)
    frame.stack.append(value)


@interprets("LOAD_ASSERTION_ERROR")
def load_assertion_error(frame: Frame, instr: Instr) -> None:
    """Push AssertionError."""
    frame.push(frame.constant(AssertionError))

"""Operators, comparisons, identity and membership."""

from __future__ import annotations

from framesmith_bytecode import Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.tensors.truths import negated, truth

UNARY = {"UNARY_NEGATIVE": "-", "UNARY_POSITIVE": "+", "UNARY_INVERT": "~"}


@interprets("BINARY_OP")
def binary_op(frame: Frame, instr: Instr) -> None:
    """left <op> right, in place when the operator ends in `=`."""
    right = frame.pop()
    left = frame.pop()
    op: str = instr.arg
    if op.endswith("="):
        frame.push(operations.inplace(frame, op[:-1], left, right))
    else:
        frame.push(operations.binary(frame, op, left, right))


@interprets(*UNARY)
def unary_op(frame: Frame, instr: Instr) -> None:
    """-x, +x, ~x"""
    frame.push(frame.pop().unary_op(frame, UNARY[instr.op]))


@interprets("UNARY_NOT")
def unary_not(frame: Frame, instr: Instr) -> None:
    """not x"""
    frame.push(negated(frame, frame.pop()))


@interprets("TO_BOOL")
def to_bool(frame: Frame, instr: Instr) -> None:
    """bool(x)"""
    frame.push(truth(frame, frame.pop()))


@interprets("COMPARE_OP")
def compare_op(frame: Frame, instr: Instr) -> None:
    """left <op> right"""
    right = frame.pop()
    frame.push(operations.compare(frame, instr.arg, frame.pop(), right))


@interprets("IS_OP")
def is_op(frame: Frame, instr: Instr) -> None:
    """left is right, or is not"""
    right = frame.pop()
    frame.push(frame.constant(operations.identity(frame, frame.pop(), right) != instr.arg))


@interprets("CONTAINS_OP")
def contains_op(frame: Frame, instr: Instr) -> None:
    """left in right, or not in"""
    container = frame.pop()
    found = container.contains(frame, frame.pop())
    frame.push(frame.constant(not found.bool_(frame)) if instr.arg else found)

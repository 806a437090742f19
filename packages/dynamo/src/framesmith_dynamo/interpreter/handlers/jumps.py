"""Jumps, conditional jumps, loops and returns."""

from __future__ import annotations

from framesmith_bytecode import ITERATOR_SLOTS, Instr
from framesmith_dynamo.interpreter import data_branches
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.base import TracedRaise, Value


@interprets("JUMP", "JUMP_NO_INTERRUPT")
def jump(frame: Frame, instr: Instr) -> None:
    frame.jump(instr.arg)


@interprets("POP_JUMP_IF_TRUE")
def pop_jump_if_true(frame: Frame, instr: Instr) -> None:
    """Pop; jump when true."""
    if data_branches.jumps(frame, instr, True):
        frame.jump(instr.arg)


@interprets("POP_JUMP_IF_FALSE")
def pop_jump_if_false(frame: Frame, instr: Instr) -> None:
    """Pop; jump when false."""
    if data_branches.jumps(frame, instr, False):
        frame.jump(instr.arg)


@interprets("POP_JUMP_IF_NONE")
def pop_jump_if_none(frame: Frame, instr: Instr) -> None:
    """Pop; jump when None."""
    if frame.pop().is_none():
        frame.jump(instr.arg)


@interprets("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(frame: Frame, instr: Instr) -> None:
    """Pop; jump unless None."""
    if not frame.pop().is_none():
        frame.jump(instr.arg)


@interprets("GET_ITER")
def get_iter(frame: Frame, instr: Instr) -> None:
    """iter(x)"""
    push_iterator(frame, frame.pop().iter_(frame))


def push_iterator(frame: Frame, iterator: Value) -> None:
    """Push an iterator in its slots; all but the first are NULL."""
    frame.push(iterator)
    frame.stack.extend([None] * (ITERATOR_SLOTS - 1))


@interprets("FOR_ITER")
def for_iter(frame: Frame, instr: Instr) -> None:
    """Push the next item, or pop the iterator and leave the loop."""
    try:
        item = frame.peek(ITERATOR_SLOTS).next_(frame)
    except TracedRaise as error:
        if not issubclass(error.value.python_type(), StopIteration):
            raise
        del frame.stack[-ITERATOR_SLOTS:]
        frame.jump(instr.arg)
        return
    frame.push(item)


@interprets("POP_ITER")
def pop_iter(frame: Frame, instr: Instr) -> None:
    """Drop the iterator of a loop that is left early."""
    del frame.stack[-ITERATOR_SLOTS:]


@interprets("RETURN_VALUE")
def return_value(frame: Frame, instr: Instr) -> None:
    """Leave the frame with the top."""
    frame.result = frame.pop()
    frame.stop = True

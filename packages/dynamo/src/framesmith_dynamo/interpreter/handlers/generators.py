"""Generators inside inlined code: created by the frame's first instruction, run on demand (see `generator`)."""

from __future__ import annotations

from framesmith_bytecode import ITERATOR_SLOTS, Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.generator import GeneratorValue
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.interpreter.handlers.jumps import push_iterator
from framesmith_dynamo.values.base import TracedRaise, Value


@interprets("RETURN_GENERATOR")
def return_generator(frame: Frame, instr: Instr) -> None:
    """Leave the frame with its generator; the first value sent will be on the stack."""
    frame.result = made = GeneratorValue(frame)
    frame.is_suspended = frame.stop = True
    if frame.parent is not None:
        frame.parent.operands += (made,)


@interprets("YIELD_VALUE")
def yield_value(frame: Frame, instr: Instr) -> None:
    """Suspend the frame with the top as its result."""
    frame.result = frame.pop()
    frame.is_suspended = True
    frame.stop = True


@interprets("GET_YIELD_FROM_ITER")
def get_yield_from_iter(frame: Frame, instr: Instr) -> None:
    """Push the iterator of `yield from`."""
    push_iterator(frame, frame.pop().iter_(frame))


@interprets("SEND")
def send(frame: Frame, instr: Instr) -> None:
    """(receiver, value): send; leave the loop with the result when the receiver ends."""
    value = frame.pop()
    receiver = frame.peek(ITERATOR_SLOTS)
    try:
        frame.push(advance(frame, receiver, value))
    except TracedRaise as error:
        if not issubclass(error.value.python_type(), StopIteration):
            raise
        frame.push(error.value.getattr_(frame, "value"))
        frame.jump(instr.arg)


def advance(frame: Frame, receiver: Value, value: Value) -> Value:
    """next(receiver), or receiver.send(value)."""
    if value.is_none():
        return receiver.next_(frame)
    return receiver.call_method(frame, "send", (value,), {})


@interprets("END_SEND")
def end_send(frame: Frame, instr: Instr) -> None:
    """(receiver, result) becomes (result)."""
    result = frame.pop()
    del frame.stack[-ITERATOR_SLOTS:]
    frame.push(result)


@interprets("CLEANUP_THROW")
def cleanup_throw(frame: Frame, instr: Instr) -> None:
    """(receiver, value, exception): a StopIteration becomes (None, its value), anything else is raised."""
    error = frame.pop()
    if not issubclass(error.python_type(), StopIteration):
        raise TracedRaise(error)
    del frame.stack[-1 - ITERATOR_SLOTS :]
    push_iterator(frame, frame.constant(None))
    frame.push(error.getattr_(frame, "value"))

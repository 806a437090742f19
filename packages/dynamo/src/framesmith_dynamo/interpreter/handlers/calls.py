"""Calls."""

from __future__ import annotations

from types import FunctionType

from framesmith_bytecode import CallShape, Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.interpreter.method_slots import MethodSlot
from framesmith_dynamo.values.base import Value
from framesmith_dynamo.values.functions.functions import FunctionValue, MethodValue
from framesmith_dynamo.values.iteration.consuming import tupled
from framesmith_dynamo.values.lookup.static import type_lookup


def pop_callable(frame: Frame) -> tuple[Value, list[Value]]:
    """Pop the two slots under the arguments: the callable, and the object as first argument if it is a method."""
    second = frame.stack.pop()
    first = frame.stack.pop()
    if first is None or second is None:
        found = first if second is None else second
        assert found is not None, "a call over two NULLs"
        return found, []
    return first, [second]


@interprets("CALL")
def call(frame: Frame, instr: Instr) -> None:
    """Call with positional arguments, the last ones by keyword."""
    shape: CallShape = instr.arg
    argc, kwnames = shape
    args = frame.popn(argc)
    split = argc - len(kwnames)
    kwargs = dict(zip(kwnames, args[split:], strict=True))
    fn, leading = pop_callable(frame)
    if is_function(fn):
        frame.operands = ()  # they are the callee's variables now
    frame.push(frame.call(fn, leading + args[:split], kwargs))


def is_function(fn: Value) -> bool:
    """Whether a call is that of a Python function with the arguments on the stack."""
    if isinstance(fn, MethodValue):
        fn = fn.function
    if isinstance(fn, MethodSlot):
        found = type_lookup(fn.owner.python_type(), fn.name)
        return found is not None and isinstance(found.raw, FunctionType)
    return isinstance(fn, FunctionValue)


@interprets("CALL_FUNCTION_EX")
def call_function_ex(frame: Frame, instr: Instr) -> None:
    """Call with an unpacked sequence and an optional unpacked mapping. Python's errors for either name the function."""
    kwargs: dict[str, Value] = {}
    if instr.arg:
        mapping = frame.pop()
        for key in mapping.unpack(frame):
            kwargs[keyword(frame, key)] = mapping.getitem(frame, key)
    sequence = frame.pop()
    if all(type_lookup(sequence.python_type(), way) is None for way in ("__iter__", "__getitem__")):
        sequence.unsupported("calling with its items")
    args = tupled(frame, sequence)
    fn, leading = pop_callable(frame)
    frame.push(frame.call(fn, leading + args, kwargs))


def keyword(frame: Frame, key: Value) -> str:
    """Return a keyword as a string; the program's TypeError otherwise."""
    if key.python_type() is not str:
        frame.raise_(TypeError, "keywords must be strings")
    text: str = key.as_constant()
    return text

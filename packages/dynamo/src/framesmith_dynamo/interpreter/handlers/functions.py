"""Functions created while tracing."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from framesmith_bytecode import FUNCTION_PARTS, Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.base import Value
from framesmith_dynamo.values.functions.functions import FunctionValue


@interprets("MAKE_FUNCTION")
def make_function(frame: Frame, instr: Instr) -> None:
    """Pop the code and the parts under it; push the function."""
    code: CodeType = frame.pop().as_constant()
    parts = {name: frame.pop() for name in reversed(FUNCTION_PARTS) if name in instr.arg}
    arguments = {name: READERS[name](frame, part) for name, part in parts.items()}
    made = FunctionValue.make(frame, code, frame.globals, qualname=code.co_qualname, **arguments)
    frame.push(made)


@interprets("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(frame: Frame, instr: Instr) -> None:
    """(value, function) becomes the function with that part set."""
    made = frame.pop()
    part = frame.pop()
    assert isinstance(made, FunctionValue), "the function was just made"
    made.set_part(frame, instr.arg, READERS[instr.arg](frame, part))
    frame.push(made)


def _defaults(frame: Frame, part: Value) -> list[Value]:
    return part.unpack(frame)


def _kwdefaults(frame: Frame, part: Value) -> dict[str, Value]:
    return {key.as_constant(): part.getitem(frame, key) for key in part.unpack(frame)}


def _annotate(frame: Frame, part: Value) -> Value:
    return part


#: The reader of each part.
READERS: dict[str, Callable[[Frame, Value], Any]] = {
    "defaults": _defaults,
    "kwdefaults": _kwdefaults,
    "annotations": _defaults,
    "annotate": _annotate,
    "closure": _defaults,
}

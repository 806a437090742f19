"""Functions created while tracing."""

from __future__ import annotations

from types import CodeType
from typing import Any

from framesmith_bytecode import FUNCTION_PARTS, Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import handler
from framesmith_dynamo.values.base import Value
from framesmith_dynamo.values.functions.functions import FunctionValue


@handler("MAKE_FUNCTION")
def make_function(frame: Frame, instr: Instr) -> None:
    """Pop the code and the parts under it; push the function."""
    code: CodeType = frame.pop().as_constant()
    parts = {name: frame.pop() for name in reversed(FUNCTION_PARTS) if name in instr.arg}
    arguments = {name: READERS[name](frame, part) for name, part in parts.items()}
    made = FunctionValue.make(frame, code, frame.globals, qualname=code.co_qualname, **_renamed(arguments))
    frame.push(made)


@handler("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(frame: Frame, instr: Instr) -> None:
    """(value, function) becomes the function with that part set."""
    made = frame.pop()
    part = frame.pop()
    assert isinstance(made, FunctionValue), "the function was just made"
    if instr.arg == "annotations":
        made.annotate(frame, part.unpack(frame))
    else:
        for name, value in _renamed({instr.arg: READERS[instr.arg](frame, part)}).items():
            setattr(made, name, tuple(value) if isinstance(value, list) else value)
    frame.push(made)


def _defaults(frame: Frame, part: Value) -> list[Value]:
    return part.unpack(frame)


def _kwdefaults(frame: Frame, part: Value) -> dict[str, Value]:
    return {key.as_constant(): part.getitem(frame, key) for key in part.unpack(frame)}


#: The reader of each part.
READERS = {"defaults": _defaults, "kwdefaults": _kwdefaults, "annotations": _defaults, "closure": _defaults}


def _renamed(arguments: dict[str, Any]) -> dict[str, Any]:
    return {("cells" if name == "closure" else name): part for name, part in arguments.items()}

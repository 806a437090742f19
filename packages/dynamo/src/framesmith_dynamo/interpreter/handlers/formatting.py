"""f-strings."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_bytecode import Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.base import Value

CONVERSIONS: dict[str, Callable[[object], str]] = {"str": str, "repr": repr, "ascii": ascii}


@interprets("CONVERT_VALUE")
def convert_value(frame: Frame, instr: Instr) -> None:
    """str(x), repr(x) or ascii(x)"""
    frame.push(frame.call(frame.constant(CONVERSIONS[instr.arg]), (frame.pop(),), {}))


def format_value(frame: Frame, value: Value, spec: Value) -> Value:
    """format(value, spec)"""
    if value.python_type() is str and value.is_constant() and not spec.as_constant():
        return value
    return frame.call(frame.constant(format), (value, spec), {})


@interprets("FORMAT_SIMPLE")
def format_simple(frame: Frame, instr: Instr) -> None:
    """format(x, '')"""
    frame.push(format_value(frame, frame.pop(), frame.constant("")))


@interprets("FORMAT_WITH_SPEC")
def format_with_spec(frame: Frame, instr: Instr) -> None:
    """format(x, spec)"""
    spec = frame.pop()
    frame.push(format_value(frame, frame.pop(), spec))


@interprets("BUILD_STRING")
def build_string(frame: Frame, instr: Instr) -> None:
    """Concatenate strings."""
    frame.push(frame.constant("".join(part.as_constant() for part in frame.popn(instr.arg))))

"""f-strings and t-strings."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_bytecode import Instr, InterpolationShape
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.base import Value
from framesmith_dynamo.values.containers.templates import new_interpolation, new_template

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


@interprets("BUILD_INTERPOLATION")
def build_interpolation(frame: Frame, instr: Instr) -> None:
    """A replacement field of a t-string: its value, its text, its conversion and its format"""
    shape: InterpolationShape = instr.arg
    spec = frame.pop() if shape.has_format else frame.constant("")
    value, text = frame.popn(2)
    conversion = shape.conversion[:1] or None
    frame.push(new_interpolation(frame, value, text, frame.constant(conversion), spec))


@interprets("BUILD_TEMPLATE")
def build_template(frame: Frame, instr: Instr) -> None:
    """A t-string: a tuple of strings and a tuple of the fields between them"""
    strings, fields = frame.popn(2)
    frame.push(new_template(frame, strings, fields))

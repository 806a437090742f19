"""Functions, type parameters and aliases created while tracing; other helpers of the interpreter called by number."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from framesmith_bytecode import FUNCTION_PARTS, Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.generator import stop_iteration_error
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.base import Value
from framesmith_dynamo.values.functions.functions import FunctionValue
from framesmith_dynamo.values.functions.type_parameters import MAKERS, TypeParameterValue, new_alias, new_parameter


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


@interprets("CALL_INTRINSIC_1")
def call_intrinsic_1(frame: Frame, instr: Instr) -> None:
    """A StopIteration that leaves a generator's body becomes a RuntimeError; type parameters and aliases are made."""
    operand = frame.pop()
    if instr.arg == "STOPITERATION_ERROR":
        ended = issubclass(operand.python_type(), StopIteration)
        frame.push(stop_iteration_error(frame, operand) if ended else operand)
    elif instr.arg in MAKERS:
        frame.push(new_parameter(frame, instr.arg, operand))
    elif instr.arg == "TYPEALIAS":
        name, parameters, evaluate = operand.unpack(frame)
        frame.push(new_alias(frame, name, parameters, evaluate))
    else:
        operand.unsupported(f"the interpreter helper {instr.arg}")


@interprets("CALL_INTRINSIC_2")
def call_intrinsic_2(frame: Frame, instr: Instr) -> None:
    """Type parameters with a bound, constraints or a default; the parameters of a function."""
    first, second = frame.popn(2)
    if instr.arg in MAKERS:
        frame.push(new_parameter(frame, instr.arg, first, second))
    elif instr.arg == "SET_FUNCTION_TYPE_PARAMS":
        first.setattr_(frame, "__type_params__", second)
        frame.push(first)
    elif instr.arg == "SET_TYPEPARAM_DEFAULT" and isinstance(first, TypeParameterValue):
        first.default = second
        frame.push(first)
    else:
        first.unsupported(f"the interpreter helper {instr.arg}")

"""Helpers of the interpreter that one instruction calls by number: of generators, of type parameters and aliases."""

from __future__ import annotations

from framesmith_bytecode import Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.generator import stop_iteration_error
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.objects.type_parameters import MAKERS, TypeParameterValue, new_alias, new_parameter


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

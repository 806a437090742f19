"""Raising and handling of exceptions of the traced program; the loop routes them."""

from __future__ import annotations

from typing import NoReturn

from framesmith_bytecode import Instr
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.base import TracedRaise, Value
from framesmith_dynamo.values.objects.exception_groups import match_group, raised_again
from framesmith_dynamo.values.objects.exceptions import ExceptionValue

EXCEPTION_CAUSE = register_break(
    "exception-cause",
    what="`raise ... from ...` with a cause that is no exception and not None",
    why="Python makes it a TypeError at run time",
    hint="raise from an exception or from None",
)


@interprets("RAISE_VARARGS")
def raise_varargs(frame: Frame, instr: Instr) -> None:
    """raise; raise exception; raise exception from cause"""
    if instr.arg == 0:
        if frame.state.handled is None:
            frame.raise_(RuntimeError, "No active exception to reraise")
        raise TracedRaise(frame.state.handled)
    cause = frame.pop() if instr.arg == 2 else None
    raise_value(frame, frame.pop(), cause)


def raise_value(frame: Frame, what: Value, cause: Value | None) -> NoReturn:
    """Raise an exception value, or an instance of an exception class."""
    error = as_exception(frame, what)
    if error is None:
        frame.raise_(TypeError, "exceptions must derive from BaseException")
    if cause is not None:
        if not cause.is_none():
            found = as_exception(frame, cause)
            if found is None:
                raise GraphBreak(EXCEPTION_CAUSE, cause.describe())
            cause = found
        error.setattr_(frame, "__cause__", cause)
    if isinstance(error, ExceptionValue):
        error.chain(frame, frame.state.handled)
    raise TracedRaise(error)


def as_exception(frame: Frame, value: Value) -> Value | None:
    """Return the exception that a `raise` operand denotes; None if it is neither an exception nor a class of them."""
    cls = value.python_type()
    if issubclass(cls, BaseException):
        return value
    if not issubclass(cls, type):
        return None
    made = frame.call(value, (), {})
    return made if issubclass(made.python_type(), BaseException) else None


@interprets("RERAISE")
def reraise(frame: Frame, instr: Instr) -> None:
    """Raise the top again."""
    raise TracedRaise(frame.pop())


@interprets("PUSH_EXC_INFO")
def push_exc_info(frame: Frame, instr: Instr) -> None:
    """Begin handling: (exception) becomes (previously handled, exception)."""
    error = frame.pop()
    if isinstance(error, ExceptionValue):
        error.caught = True
    frame.push(frame.state.handled or frame.constant(None))
    frame.push(error)
    frame.state.handled = error


@interprets("POP_EXCEPT")
def pop_except(frame: Frame, instr: Instr) -> None:
    """End handling: the exception handled before is current again."""
    previous = frame.pop()
    frame.state.handled = None if previous.is_none() else previous


@interprets("CHECK_EXC_MATCH")
def check_exc_match(frame: Frame, instr: Instr) -> None:
    """Replace the type by whether the exception below matches it."""
    wanted = frame.pop()
    frame.push(frame.constant(matches(frame, frame.peek(1), wanted)))


@interprets("CHECK_EG_MATCH")
def check_eg_match(frame: Frame, instr: Instr) -> None:
    """(exception, type) becomes (rest, match), for `except*`; the match is the exception being handled."""
    wanted = frame.pop()
    error = frame.pop()
    check_star_classes(frame, wanted)
    match, rest = match_group(frame, error, wanted)
    if not match.is_none():
        frame.state.handled = match
    frame.push(rest)
    frame.push(match)


@interprets("PREP_RERAISE_STAR")
def prep_reraise_star(frame: Frame, instr: Instr) -> None:
    """(original, exceptions) becomes what `except*` raises again, or None."""
    exceptions = frame.pop().unpack(frame)
    frame.push(raised_again(frame, frame.pop(), exceptions))


def check_star_classes(frame: Frame, wanted: Value) -> None:
    """Raise the program's TypeError for what `except*` cannot catch: other objects than exceptions, and groups."""
    classes = wanted.unpack(frame) if issubclass(wanted.python_type(), tuple) else [wanted]
    for cls in classes:
        check_class(frame, cls)
    if any(issubclass(cls.as_constant(), BaseExceptionGroup) for cls in classes):
        frame.raise_(TypeError, "catching ExceptionGroup with except* is not allowed. Use except instead.")


def check_class(frame: Frame, wanted: Value) -> None:
    """Raise the program's TypeError for what cannot be caught."""
    if not issubclass(wanted.python_type(), type) or not issubclass(wanted.as_constant(), BaseException):
        frame.raise_(TypeError, "catching classes that do not inherit from BaseException is not allowed")


def matches(frame: Frame, error: Value, wanted: Value) -> bool:
    """Whether an exception is of a class, or of one in a tuple."""
    if issubclass(wanted.python_type(), tuple):
        return any(matches(frame, error, item) for item in wanted.unpack(frame))
    check_class(frame, wanted)
    return issubclass(error.python_type(), wanted.as_constant())

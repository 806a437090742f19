"""`with` statements."""

from __future__ import annotations

from typing import Any

from framesmith_bytecode import EXIT_SLOTS, Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.interpreter.method_slots import callable_slots
from framesmith_dynamo.values.errors import namesake, refuse_positional
from framesmith_dynamo.values.exits import ExitValue
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.exceptions import TracebackValue


def enter(manager: Any, *methods: str) -> None:
    """Enter an object that has only these methods of a context manager: Python's error."""
    with namesake(type(manager), (), dict.fromkeys(methods, enter))():
        pass


@interprets("BEFORE_WITH")
def before_with(frame: Frame, instr: Instr) -> None:
    """Enter a context manager: push its exit and the result of `__enter__`."""
    manager = frame.pop()
    methods = [name for name in ("__enter__", "__exit__") if type_lookup(manager.python_type(), name) is not None]
    if len(methods) < 2:
        refuse_positional(frame, enter, manager, *map(frame.constant, methods))
    entered = manager.enter(frame)
    frame.stack.extend(callable_slots(ExitValue(manager)) if EXIT_SLOTS == 2 else [ExitValue(manager)])
    frame.push(entered)


@interprets("WITH_EXCEPT_START")
def with_except_start(frame: Frame, instr: Instr) -> None:
    """Call the exit with the exception being handled; push its result."""
    error = frame.peek(1)
    kind = frame.constant(error.python_type())
    frame.push(frame.call(frame.peek(3 + EXIT_SLOTS), (kind, error, TracebackValue()), {}))

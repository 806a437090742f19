"""`with` statements."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any

from framesmith_bytecode import Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.errors import refuse_positional
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.exceptions import TracebackValue

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class ExitValue(Value):
    """The `__exit__` that a `with` statement saves for the end of its block."""

    __slots__ = ("manager",)

    def __init__(self, manager: Value) -> None:
        super().__init__()
        self.manager = manager

    def python_type(self) -> type:
        return MethodType

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return self.manager.exit_(tr, args)

    def referents(self) -> Iterable[Value]:
        return (self.manager,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen(self.manager)
        codegen.load_attr("__exit__")


def enter(manager: Any) -> None:
    """Enter an object that is no context manager: Python's error."""
    with manager:
        pass


def enter_without_exit(manager: Any) -> None:
    """Enter an object without `__exit__`: Python's error."""
    enter(type(type(manager).__name__, (), {"__enter__": enter})())


@interprets("BEFORE_WITH")
def before_with(frame: Frame, instr: Instr) -> None:
    """Enter a context manager: push its exit and the result of `__enter__`."""
    manager = frame.pop()
    for name in ("__enter__", "__exit__"):
        if type_lookup(manager.python_type(), name) is None:
            refuse_positional(frame, enter_without_exit if name == "__exit__" else enter, manager)
    entered = manager.enter(frame)
    frame.push(ExitValue(manager))
    frame.push(entered)


@interprets("WITH_EXCEPT_START")
def with_except_start(frame: Frame, instr: Instr) -> None:
    """Call the exit with the exception being handled; push its result."""
    error = frame.peek(1)
    kind = frame.constant(error.python_type())
    frame.push(frame.call(frame.peek(4), (kind, error, TracebackValue()), {}))

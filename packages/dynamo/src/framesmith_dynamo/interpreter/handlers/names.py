"""Globals and builtins."""

from __future__ import annotations

from framesmith_bytecode import Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import handler
from framesmith_dynamo.interpreter.namespaces import load_global
from framesmith_dynamo.values import namespaces


@handler("LOAD_GLOBAL")
def load_global_name(frame: Frame, instr: Instr) -> None:
    """Push a global or builtin."""
    frame.stack.append(load_global(frame, instr.arg))


@handler("STORE_GLOBAL")
def store_global(frame: Frame, instr: Instr) -> None:
    """Pop into a global."""
    namespaces.store(frame, frame.globals, instr.arg, frame.pop())


@handler("DELETE_GLOBAL")
def delete_global(frame: Frame, instr: Instr) -> None:
    """Delete a global."""
    if namespaces.load(frame, frame.globals, instr.arg) is None:
        namespaces.rely_on_absence(frame, frame.globals, instr.arg)
        frame.raise_(NameError, f"name '{instr.arg}' is not defined")
    namespaces.delete(frame, frame.globals, instr.arg)

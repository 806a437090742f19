"""Globals and builtins."""

from __future__ import annotations

from framesmith_bytecode import Instr
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import handler
from framesmith_dynamo.interpreter.namespaces import load_global, namespace_source
from framesmith_sideeffects import DELETED


@handler("LOAD_GLOBAL")
def load_global_name(frame: Frame, instr: Instr) -> None:
    """Push a global or builtin."""
    frame.stack.append(load_global(frame, instr.arg))


@handler("STORE_GLOBAL")
def store_global(frame: Frame, instr: Instr) -> None:
    """Pop into a global."""
    frame.journal.store_global(frame.globals, instr.arg, frame.pop(), namespace_source(frame))


@handler("DELETE_GLOBAL")
def delete_global(frame: Frame, instr: Instr) -> None:
    """Delete a global."""
    pending = frame.journal.load_global(frame.globals, instr.arg)
    if pending is DELETED or (pending is None and instr.arg not in frame.globals):
        frame.raise_(NameError, f"name '{instr.arg}' is not defined")
    if pending is None:
        load_global(frame, instr.arg)
    frame.journal.delete_global(frame.globals, instr.arg, namespace_source(frame))

"""Names that are not local, as LOAD_GLOBAL and LOAD_NAME look them up: in the frame's globals, then its builtins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framesmith_dynamo.values import namespaces

if TYPE_CHECKING:
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.values.base import Value


def load_global(frame: Frame, name: str) -> Value:
    """The value of a global or builtin name; raises the program's NameError. A global may shadow a builtin later."""
    value = namespaces.load(frame, frame.globals, name)
    if value is not None:
        return value
    namespaces.rely_on_absence(frame, frame.globals, name)
    value = namespaces.load_builtin(frame, frame.globals, name)
    if value is None:
        frame.raise_(NameError, f"name '{name}' is not defined")
    return value

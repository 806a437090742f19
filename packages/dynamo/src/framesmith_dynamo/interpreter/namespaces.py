"""Globals and builtins as frames see them: where a name is found, at which source, with what guard."""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.lookup import is_trusted
from framesmith_dynamo.values.pins import pin
from framesmith_guards import (
    BuiltinSource,
    GlobalsDictSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    ModuleSource,
)
from framesmith_sideeffects import DELETED

if TYPE_CHECKING:
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.values.base import Value
    from framesmith_guards import Source

FOREIGN_GLOBALS = register_break(
    "foreign-globals",
    what="a global of a namespace that no imported module owns",
    why="compiled code has no way to find the namespace again",
    hint="import the function from a module instead of exec'ing it into a dictionary",
)


def namespace_source(frame: Frame) -> Source | None:
    """The source of a frame's globals dict; None for those of the outermost frame's own function."""
    if frame.globals is frame.state.globals:
        return None
    for name in (frame.globals.get("__name__"), getattr(frame.globals.get("__spec__"), "name", None)):
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and module.__dict__ is frame.globals:
            return InstanceDictSource(ModuleSource(str(name)))
    raise GraphBreak(FOREIGN_GLOBALS, f"globals of {frame.code.bytecode.qualname}")


def global_source(frame: Frame, name: str) -> Source:
    """Where a global variable of the frame is found."""
    owner = namespace_source(frame)
    return GlobalSource(name) if owner is None else ItemSource(owner, name)


def load_global(frame: Frame, name: str) -> Value:
    """The value of a global or builtin name; raises the program's NameError."""
    pending = frame.journal.load_global(frame.globals, name)
    if pending is not None and pending is not DELETED:
        found: Value = pending
        return found
    if pending is None and name in frame.globals:
        pin_global(frame, name)
        return frame.wrap(frame.globals[name], global_source(frame, name))
    return load_builtin(frame, name)


def pin_global(frame: Frame, name: str) -> None:
    """Rely on a trusted library's module keeping one of its globals."""
    home = frame.globals.get("__name__")
    module = sys.modules.get(home) if is_trusted(home) and isinstance(home, str) else None
    if module is not None and module.__dict__ is frame.globals:
        pin(frame, module, name, frame.globals[name])


def load_builtin(frame: Frame, name: str) -> Value:
    """The value of a builtin, guarded against a global that shadows it later."""
    namespace = builtins_of(frame.globals)
    if name not in namespace:
        frame.raise_(NameError, f"name '{name}' is not defined")
    owner = namespace_source(frame)
    if not is_trusted(frame.globals.get("__name__")):
        frame.guard(GlobalsDictSource() if owner is None else owner, "DICT_NOT_CONTAINS", name)
    return frame.wrap(namespace[name], BuiltinSource(name))


def builtins_of(globals: dict[str, Any]) -> dict[str, Any]:
    """The builtins a namespace sees."""
    found = globals.get("__builtins__", builtins)
    return found if isinstance(found, dict) else vars(found)

"""Globals, builtins and imports: imported modules are looked up, a first import breaks."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from framesmith_bytecode import Instr
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.interpreter.handler_registry import interprets
from framesmith_dynamo.values import namespaces
from framesmith_dynamo.values.base import TracedRaise, Value
from framesmith_dynamo.values.lookup.libraries import is_trusted
from framesmith_guards import ModuleSource

IMPORT_FAILS = register_break(
    "import-fails",
    what="a name that a module lacks is imported from it",
    why="Python words the error by the files of the module and of the program",
    hint="import the name outside the compiled function",
)


def load_global(frame: Frame, name: str) -> Value:
    """Return a global or builtin; raises the program's NameError. A global may shadow a builtin later."""
    value = namespaces.load(frame, frame.globals, name)
    if value is not None:
        return value
    namespaces.guard_absence(frame, frame.globals, name)
    value = namespaces.load_builtin(frame, frame.globals, name)
    if value is None:
        frame.raise_(NameError, f"name '{name}' is not defined")
    return value


@interprets("LOAD_GLOBAL")
def load_global_name(frame: Frame, instr: Instr) -> None:
    """Push a global or builtin."""
    frame.stack.append(load_global(frame, instr.arg))


@interprets("STORE_GLOBAL")
def store_global(frame: Frame, instr: Instr) -> None:
    """Pop into a global."""
    namespaces.store(frame, frame.globals, instr.arg, frame.pop())


@interprets("DELETE_GLOBAL")
def delete_global(frame: Frame, instr: Instr) -> None:
    """Delete a global."""
    if namespaces.load(frame, frame.globals, instr.arg) is None:
        namespaces.guard_absence(frame, frame.globals, instr.arg)
        frame.raise_(NameError, f"name '{instr.arg}' is not defined")
    namespaces.delete(frame, frame.globals, instr.arg)


def resolve(frame: Frame, name: str, level: int) -> str:
    """Return the absolute name of an import statement."""
    if level == 0:
        return name
    package = frame.globals.get("__package__") or frame.globals.get("__name__", "").rpartition(".")[0]
    return importlib.util.resolve_name("." * level + name, package)


@interprets("IMPORT_NAME")
def import_name(frame: Frame, instr: Instr) -> None:
    """Push an imported module: the one named, or its top package when nothing is imported from it."""
    level, names = frame.popn(2)
    full = resolve(frame, instr.arg, level.as_constant())
    if not isinstance(sys.modules.get(full), ModuleType):
        raise GraphBreak(namespaces.IMPORT_RUNS_CODE, full)
    bound = full if names.as_constant() else full.partition(".")[0]
    module = frame.wrap(sys.modules[bound], ModuleSource(bound))
    if names.as_constant():
        ask_whether_package(frame, module)
    frame.push(module)


def ask_whether_package(frame: Frame, module: Value) -> None:
    """Read `__path__`, as imports from a module do: a module's own `__getattr__` sees it."""
    names = vars(module.as_constant())
    if "__getattr__" not in names or "__path__" in names or is_trusted(names.get("__name__")):
        return
    try:
        module.getattr_(frame, "__path__")
    except TracedRaise as error:
        if not issubclass(error.value.python_type(), AttributeError):
            raise


@interprets("IMPORT_FROM")
def import_from(frame: Frame, instr: Instr) -> None:
    """Push an attribute of the module on top, or its submodule of that name."""
    module = frame.peek(1)
    try:
        frame.push(module.getattr_(frame, instr.arg))
    except TracedRaise as error:
        if not issubclass(error.value.python_type(), AttributeError):
            raise
        name = f"{module.as_constant().__name__}.{instr.arg}"
        if name not in sys.modules:
            raise GraphBreak(IMPORT_FAILS, name) from None
        frame.push(frame.wrap(sys.modules[name], ModuleSource(name)))

"""Sources that start a path: arguments, globals, free variables, builtins, modules and global state."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from framesmith_guards.sources.base import Names, Root

Args = Mapping[str, object]


@dataclass(frozen=True, eq=False, repr=False)
class LocalSource(Root):
    """An argument of the call, by name."""

    local: str

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return args[self.local]

    def expression(self, base: str, names: Names) -> str:
        return names.argument(self.local)

    def label(self, base: str) -> str:
        return f"L[{self.local!r}]"


@dataclass(frozen=True, eq=False, repr=False)
class GlobalSource(Root):
    """A global variable of the function's module (never a builtin)."""

    global_name: str

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return function.__globals__[self.global_name]

    def expression(self, base: str, names: Names) -> str:
        return f"function.__globals__[{self.global_name!r}]"

    def label(self, base: str) -> str:
        return f"G[{self.global_name!r}]"


@dataclass(frozen=True, eq=False, repr=False)
class ClosureSource(Root):
    """The contents of one of the function's free-variable cells."""

    freevar: str

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        index = function.__code__.co_freevars.index(self.freevar)
        return (function.__closure__ or ())[index].cell_contents

    def expression(self, base: str, names: Names) -> str:
        return f"{names.freevar(self.freevar)}.cell_contents"

    def label(self, base: str) -> str:
        return f"C[{self.freevar!r}]"


@dataclass(frozen=True, eq=False, repr=False)
class BuiltinSource(Root):
    """A name of the function's builtins."""

    builtin: str

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        owner: Any = function  # not every type stub knows the attribute
        return owner.__builtins__[self.builtin]

    def expression(self, base: str, names: Names) -> str:
        return f"function.__builtins__[{self.builtin!r}]"

    def label(self, base: str) -> str:
        return f"B[{self.builtin!r}]"


@dataclass(frozen=True, eq=False, repr=False)
class FunctionSource(Root):
    """The function that is called."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return function

    def expression(self, base: str, names: Names) -> str:
        return "function"

    def label(self, base: str) -> str:
        return "function"


@dataclass(frozen=True, eq=False, repr=False)
class GlobalsDictSource(Root):
    """The function's globals dictionary itself."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return function.__globals__

    def expression(self, base: str, names: Names) -> str:
        return "function.__globals__"

    def label(self, base: str) -> str:
        return "G"


@dataclass(frozen=True, eq=False, repr=False)
class ModuleSource(Root):
    """An imported module: an entry of `sys.modules`."""

    module: str

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return sys.modules[self.module]

    def expression(self, base: str, names: Names) -> str:
        return f"{names.bind(sys.modules, 'modules')}[{self.module!r}]"

    def label(self, base: str) -> str:
        return f"sys.modules[{self.module!r}]"


@dataclass(frozen=True, eq=False, repr=False)
class HandledExceptionSource(Root):
    """The exception that is being handled around the call, or None: `sys.exception()`."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return sys.exc_info()[1]

    def expression(self, base: str, names: Names) -> str:
        return f"{names.bind(sys.exc_info, 'exc_info')}()[1]"

    def label(self, base: str) -> str:
        return "sys.exception()"


@dataclass(frozen=True, eq=False, repr=False)
class _NoValue(Root):
    """A root that stands for something other than one value."""

    def read(self, base: Any, args: Args, function: FunctionType) -> object:
        return None

    def expression(self, base: str, names: Names) -> str:
        return "None"


@dataclass(frozen=True, eq=False, repr=False)
class GlobalStateSource(_NoValue):
    """Torch's process and thread state: grad mode, autocast, defaults, modes."""

    def label(self, base: str) -> str:
        return "<global state>"


@dataclass(frozen=True, eq=False, repr=False)
class ShapeEnvSource(_NoValue):
    """The relations between symbolic sizes; a SHAPE guard names the sources of its symbols itself."""

    def label(self, base: str) -> str:
        return "<shapes>"

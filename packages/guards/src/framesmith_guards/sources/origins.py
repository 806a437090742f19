"""The starts of guarded paths, for reports, filters and exports."""

from __future__ import annotations

import enum
from typing import Final

from framesmith_guards.sources.base import Source
from framesmith_guards.sources.roots import (
    BuiltinSource,
    ClosureSource,
    FunctionSource,
    GlobalsDictSource,
    GlobalSource,
    GlobalStateSource,
    HandledExceptionSource,
    LocalSource,
    ModuleSource,
    ShapeEnvSource,
)


class GuardSource(enum.Enum):
    """The start of a path."""

    LOCAL = enum.auto()
    GLOBAL = enum.auto()
    CLOSURE = enum.auto()
    BUILTIN = enum.auto()
    FUNCTION = enum.auto()
    IMPORTED = enum.auto()
    CALLER = enum.auto()
    GLOBAL_STATE = enum.auto()
    SHAPE_ENV = enum.auto()


_ORIGINS: Final[dict[type[Source], GuardSource]] = {
    LocalSource: GuardSource.LOCAL,
    GlobalSource: GuardSource.GLOBAL,
    GlobalsDictSource: GuardSource.GLOBAL,
    ClosureSource: GuardSource.CLOSURE,
    BuiltinSource: GuardSource.BUILTIN,
    FunctionSource: GuardSource.FUNCTION,
    ModuleSource: GuardSource.IMPORTED,
    HandledExceptionSource: GuardSource.CALLER,
    GlobalStateSource: GuardSource.GLOBAL_STATE,
    ShapeEnvSource: GuardSource.SHAPE_ENV,
}


def origin_of(source: Source) -> GuardSource:
    return _ORIGINS[type(source.root)]

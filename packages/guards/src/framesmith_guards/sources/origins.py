"""Where guarded paths start, and what kind of module they are in: facts for reports, filters and exports."""

from __future__ import annotations

import enum
from typing import Final

import torch

from framesmith_guards.sources.base import Source
from framesmith_guards.sources.roots import (
    BuiltinSource,
    ClosureSource,
    EphemeralSource,
    FunctionSource,
    GlobalsDictSource,
    GlobalSource,
    GlobalStateSource,
    LocalSource,
    ModuleSource,
    ShapeEnvSource,
)


class GuardSource(enum.Enum):
    """Where a path starts."""

    LOCAL = enum.auto()
    GLOBAL = enum.auto()
    CLOSURE = enum.auto()
    BUILTIN = enum.auto()
    FUNCTION = enum.auto()
    IMPORTED = enum.auto()
    GLOBAL_STATE = enum.auto()
    SHAPE_ENV = enum.auto()
    EPHEMERAL = enum.auto()

    @property
    def is_local(self) -> bool:
        """Whether the path starts at the call's own arguments."""
        return self is GuardSource.LOCAL

    @property
    def has_value(self) -> bool:
        """Whether the path leads to one value that a later call can evaluate again."""
        return self not in (GuardSource.GLOBAL_STATE, GuardSource.SHAPE_ENV, GuardSource.EPHEMERAL)


_ORIGINS: Final[dict[type[Source], GuardSource]] = {
    LocalSource: GuardSource.LOCAL,
    GlobalSource: GuardSource.GLOBAL,
    GlobalsDictSource: GuardSource.GLOBAL,
    ClosureSource: GuardSource.CLOSURE,
    BuiltinSource: GuardSource.BUILTIN,
    FunctionSource: GuardSource.FUNCTION,
    ModuleSource: GuardSource.IMPORTED,
    GlobalStateSource: GuardSource.GLOBAL_STATE,
    ShapeEnvSource: GuardSource.SHAPE_ENV,
    EphemeralSource: GuardSource.EPHEMERAL,
}


def origin_of(source: Source) -> GuardSource:
    """Where a path starts."""
    return _ORIGINS[type(source.root)]


class ModuleKind(enum.Enum):
    """How a module is compiled: none is specialised on here, so that these differ only in whose code runs."""

    NONE = enum.auto()
    USER = enum.auto()
    BUILTIN = enum.auto()
    SHARDED = enum.auto()


def module_kind(value: object) -> ModuleKind:
    """Whether a value is a module, and whose: torch's own, a user's, or one whose parameters are sharded."""
    if not isinstance(value, torch.nn.Module):
        return ModuleKind.NONE
    if getattr(type(value), "_is_fsdp_managed_module", False) or "_is_fsdp_managed_module" in vars(value):
        return ModuleKind.SHARDED
    own = type(value).__module__.startswith(("torch.nn.", "torch.ao."))
    return ModuleKind.BUILTIN if own else ModuleKind.USER

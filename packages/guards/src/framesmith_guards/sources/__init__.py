"""Sources: frozen, interned paths from a call's arguments and function to a value."""

from framesmith_guards.sources.base import Names, Source
from framesmith_guards.sources.modules import buffer_source, parameter_source, submodule_source
from framesmith_guards.sources.origins import GuardSource, ModuleKind, module_kind, origin_of
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
from framesmith_guards.sources.steps import (
    AsTensorSource,
    AttrSource,
    CellContentsSource,
    DictKeySource,
    DictValueSource,
    InstanceDictSource,
    ItemSource,
    TensorPropertySource,
    TypeSource,
    WeakRefSource,
)

__all__ = [
    "AsTensorSource",
    "AttrSource",
    "BuiltinSource",
    "CellContentsSource",
    "ClosureSource",
    "DictKeySource",
    "DictValueSource",
    "EphemeralSource",
    "FunctionSource",
    "GlobalSource",
    "GlobalStateSource",
    "GlobalsDictSource",
    "GuardSource",
    "InstanceDictSource",
    "ItemSource",
    "LocalSource",
    "ModuleKind",
    "ModuleSource",
    "Names",
    "ShapeEnvSource",
    "Source",
    "TensorPropertySource",
    "TypeSource",
    "WeakRefSource",
    "buffer_source",
    "module_kind",
    "origin_of",
    "parameter_source",
    "submodule_source",
]

"""Sources, guards and tracing contexts; guard sets compiled to fast checks."""

from framesmith_guards.__about__ import __version__
from framesmith_guards.constants import freeze, is_constant, same_constant, why_not_constant
from framesmith_guards.errors import GuardError
from framesmith_guards.fake_mode import active_fake_mode, fake_mode_of, new_fake_mode
from framesmith_guards.guard import Guard, GuardsSet, state_guards
from framesmith_guards.kinds import KINDS, GuardKind, kind_named
from framesmith_guards.program import CheckProgram, compile_guards, explain_nearest
from framesmith_guards.refs import Ref
from framesmith_guards.shapes import ShapeExpr
from framesmith_guards.sources import (
    AsTensorSource,
    AttrSource,
    BuiltinSource,
    CellContentsSource,
    ClosureSource,
    DictKeySource,
    DictValueSource,
    EphemeralSource,
    FunctionSource,
    GlobalsDictSource,
    GlobalSource,
    GlobalStateSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ModuleSource,
    ShapeEnvSource,
    Source,
    TensorPropertySource,
    TypeSource,
    WeakRefSource,
    buffer_source,
    parameter_source,
    submodule_source,
)
from framesmith_guards.tensors import TensorSpec

__all__ = [
    "KINDS",
    "AsTensorSource",
    "AttrSource",
    "BuiltinSource",
    "CellContentsSource",
    "CheckProgram",
    "ClosureSource",
    "DictKeySource",
    "DictValueSource",
    "EphemeralSource",
    "FunctionSource",
    "GlobalSource",
    "GlobalStateSource",
    "GlobalsDictSource",
    "Guard",
    "GuardError",
    "GuardKind",
    "GuardsSet",
    "InstanceDictSource",
    "ItemSource",
    "LocalSource",
    "ModuleSource",
    "Ref",
    "ShapeEnvSource",
    "ShapeExpr",
    "Source",
    "TensorPropertySource",
    "TensorSpec",
    "TypeSource",
    "WeakRefSource",
    "__version__",
    "active_fake_mode",
    "buffer_source",
    "compile_guards",
    "explain_nearest",
    "fake_mode_of",
    "freeze",
    "is_constant",
    "kind_named",
    "new_fake_mode",
    "parameter_source",
    "same_constant",
    "state_guards",
    "submodule_source",
    "why_not_constant",
]

"""Sources and guards; guard sets compiled to fast checks; the functions that several packages above share."""

import framesmith_guards.supported  # noqa: F401 - first: refuses an interpreter that is not supported
from framesmith_guards.__about__ import __version__
from framesmith_guards.calling import called_from
from framesmith_guards.contexts import (
    CompileContext,
    CompileId,
    TraceId,
    compile_context,
)
from framesmith_guards.errors import GuardError
from framesmith_guards.guard import Guard, GuardsSet, state_guards
from framesmith_guards.kinds.shapes import ShapeExpr
from framesmith_guards.kinds.storages import all_disjoint, no_overlap
from framesmith_guards.kinds.table import GuardKind
from framesmith_guards.programs.compiler import compile_guards
from framesmith_guards.programs.explaining import Miss, explain
from framesmith_guards.programs.program import CheckProgram
from framesmith_guards.sources import (
    AttrSource,
    BuiltinSource,
    CachedResultSource,
    CellContentsSource,
    ClosureSource,
    DictKeySource,
    DictValueSource,
    FunctionSource,
    GlobalsDictSource,
    GlobalSource,
    GuardSource,
    HandledExceptionSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    MembersSource,
    ModuleSource,
    ProxiedSource,
    ShapeEnvSource,
    Source,
    StoredItemSource,
    SubclassesSource,
    TensorPropertySource,
    TypeSource,
    WeakRefSource,
    buffer_source,
    cached_result,
    mapping_behind,
    members_of,
    parameter_source,
    stored_item,
    submodule_source,
)
from framesmith_guards.specialize import Specialized, specialize
from framesmith_guards.stacks import (
    Location,
    current_location,
    lines_forgotten,
    located,
    location_of,
    note_location,
    warn_user,
)
from framesmith_guards.values.constants import is_constant
from framesmith_guards.values.tensors import TensorSpec

__all__ = [
    "AttrSource",
    "BuiltinSource",
    "CachedResultSource",
    "CellContentsSource",
    "CheckProgram",
    "ClosureSource",
    "CompileContext",
    "CompileId",
    "DictKeySource",
    "DictValueSource",
    "FunctionSource",
    "GlobalSource",
    "GlobalsDictSource",
    "Guard",
    "GuardError",
    "GuardKind",
    "GuardSource",
    "GuardsSet",
    "HandledExceptionSource",
    "InstanceDictSource",
    "ItemSource",
    "LocalSource",
    "Location",
    "MembersSource",
    "Miss",
    "ModuleSource",
    "ProxiedSource",
    "ShapeEnvSource",
    "ShapeExpr",
    "Source",
    "Specialized",
    "StoredItemSource",
    "SubclassesSource",
    "TensorPropertySource",
    "TensorSpec",
    "TraceId",
    "TypeSource",
    "WeakRefSource",
    "__version__",
    "all_disjoint",
    "buffer_source",
    "cached_result",
    "called_from",
    "compile_context",
    "compile_guards",
    "current_location",
    "explain",
    "is_constant",
    "lines_forgotten",
    "located",
    "location_of",
    "mapping_behind",
    "members_of",
    "no_overlap",
    "note_location",
    "parameter_source",
    "specialize",
    "state_guards",
    "stored_item",
    "submodule_source",
    "warn_user",
]

"""Sources and guards; guard sets compiled to fast checks."""

from framesmith_guards.__about__ import __version__
from framesmith_guards.calling import called_from
from framesmith_guards.contexts import (
    CompileContext,
    CompileId,
    TraceId,
    compile_context,
)
from framesmith_guards.errors import GuardError
from framesmith_guards.fakes.defects import is_defect
from framesmith_guards.fakes.memory_reads import is_memory_read
from framesmith_guards.fakes.modes import fake_mode_of, new_fake_mode
from framesmith_guards.fakes.python_kernels import python_kernels
from framesmith_guards.guard import Guard, GuardsSet, state_guards
from framesmith_guards.kinds.shapes import ShapeExpr
from framesmith_guards.kinds.storages import all_apart, no_overlap
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
    "all_apart",
    "buffer_source",
    "cached_result",
    "called_from",
    "compile_context",
    "compile_guards",
    "current_location",
    "explain",
    "fake_mode_of",
    "is_constant",
    "is_defect",
    "is_memory_read",
    "lines_forgotten",
    "located",
    "location_of",
    "mapping_behind",
    "members_of",
    "new_fake_mode",
    "no_overlap",
    "note_location",
    "parameter_source",
    "python_kernels",
    "specialize",
    "state_guards",
    "stored_item",
    "submodule_source",
    "warn_user",
]

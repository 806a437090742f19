"""Generation of code that pushes the object which a guard's source names: one row per kind of source."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from framesmith_guards import (
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
    cached_result,
    mapping_behind,
    stored_item,
)
from framesmith_guards.sources import GlobalStateSource
from framesmith_guards.sources.steps import nth_key, nth_value

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

Loader = Callable[["Codegen", Any], None]


class CannotLoad(TypeError):
    """A source that generated code cannot load."""


def load_source(codegen: Codegen, source: Source) -> None:
    """Push the object that `source` names. Raises CannotLoad for sources without an object in the running code."""
    loader = LOADERS.get(type(source))
    if loader is None:
        why = NOT_LOADABLE.get(type(source), "no loader knows this kind of source")
        raise CannotLoad(f"{source.name} ({type(source).__name__}) cannot be loaded by generated code: {why}")
    loader(codegen, source)


def _call_with_base(codegen: Codegen, function: Callable[..., object], base: Source, *constants: object) -> None:
    codegen.push_function(function)
    load_source(codegen, base)
    for constant in constants:
        codegen.load_const(constant)
    codegen.call(1 + len(constants))


def _module(codegen: Codegen, source: ModuleSource) -> None:
    codegen.load_const(sys)  # not the dict: code objects are hashed with their constants
    codegen.load_attr("modules")
    codegen.load_item(source.module)


def _attribute(codegen: Codegen, source: AttrSource) -> None:
    if source.attr.isidentifier():
        _attribute_of(codegen, source.base, source.attr)
    else:
        _call_with_base(codegen, getattr, source.base, source.attr)


def _attribute_of(codegen: Codegen, base: Source, name: str) -> None:
    load_source(codegen, base)
    codegen.load_attr(name)


def _item(codegen: Codegen, source: ItemSource) -> None:
    load_source(codegen, source.base)
    codegen.load_item(source.key)


def _weak_referent(codegen: Codegen, source: WeakRefSource) -> None:
    codegen.push_callable(lambda: load_source(codegen, source.base))
    codegen.call(0)


def _tensor_property(codegen: Codegen, source: TensorPropertySource) -> None:
    dims = () if source.dim is None else (source.dim,)
    codegen.push_callable(lambda: _attribute_of(codegen, source.base, source.property))
    for dim in dims:
        codegen.load_const(dim)
    codegen.call(len(dims))


LOADERS: Mapping[type[Source], Loader] = {
    LocalSource: lambda codegen, source: codegen.load(source.local),
    ClosureSource: lambda codegen, source: codegen.load(source.freevar),
    GlobalSource: lambda codegen, source: codegen.load_global(source.global_name),
    BuiltinSource: lambda codegen, source: codegen.load_global(source.builtin),
    GlobalsDictSource: lambda codegen, source: codegen.push_call(globals),
    ModuleSource: _module,
    AttrSource: _attribute,
    InstanceDictSource: lambda codegen, source: _attribute_of(codegen, source.base, "__dict__"),
    CellContentsSource: lambda codegen, source: _attribute_of(codegen, source.base, "cell_contents"),
    ItemSource: _item,
    StoredItemSource: lambda codegen, source: _call_with_base(codegen, stored_item, source.base, source.key),
    ProxiedSource: lambda codegen, source: _call_with_base(codegen, mapping_behind, source.base),
    TypeSource: lambda codegen, source: _call_with_base(codegen, type, source.base),
    DictKeySource: lambda codegen, source: _call_with_base(codegen, nth_key, source.base, source.index),
    DictValueSource: lambda codegen, source: _call_with_base(codegen, nth_value, source.base, source.index),
    WeakRefSource: _weak_referent,
    TensorPropertySource: _tensor_property,
    CachedResultSource: lambda codegen, source: _call_with_base(codegen, cached_result, source.base, source.key),
    SubclassesSource: lambda codegen, source: _call_with_base(codegen, type.__subclasses__, source.base),
}

#: The sources without a loader, and why: see Note [Adding a source] in framesmith_guards' sources/base.py.
NOT_LOADABLE: Mapping[type[Source], str] = {
    FunctionSource: "code does not know the function that it runs for",
    MembersSource: "it is a copy, which guards alone compare",
    HandledExceptionSource: "the code may handle another exception when it loads this one",
    GlobalStateSource: "it stands for no object",
    ShapeEnvSource: "it stands for no object",
}

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

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

Loader = Callable[["Codegen", Any], None]
LOADERS: dict[type[Source], Loader] = {}

#: The sources without a loader, and why: see Note [Adding a source] in framesmith_guards' sources/base.py.
NOT_LOADABLE: Mapping[type[Source], str] = {
    FunctionSource: "code does not know the function that it runs for",
    MembersSource: "it is a copy, which guards alone compare",
    HandledExceptionSource: "the code may handle another exception when it loads this one",
    GlobalStateSource: "it stands for no object",
    ShapeEnvSource: "it stands for no object",
}


class CannotLoad(TypeError):
    """A source that generated code cannot load."""


def load_source(codegen: Codegen, source: Source) -> None:
    """Push the object that `source` names. Raises CannotLoad for sources without an object in the running code."""
    loader = LOADERS.get(type(source))
    if loader is None:
        why = NOT_LOADABLE.get(type(source), "no loader knows this kind of source")
        raise CannotLoad(f"{source.name} ({type(source).__name__}) cannot be loaded by generated code: {why}")
    loader(codegen, source)


def _loads(cls: type[Source]) -> Callable[[Loader], Loader]:
    def register(loader: Loader) -> Loader:
        LOADERS[cls] = loader
        return loader

    return register


def _call_with_base(codegen: Codegen, function: Callable[..., object], base: Source, *constants: object) -> None:
    codegen.push_function(function)
    load_source(codegen, base)
    for constant in constants:
        codegen.load_const(constant)
    codegen.call(1 + len(constants))


@_loads(LocalSource)
def _local(codegen: Codegen, source: LocalSource) -> None:
    codegen.load(source.local)


@_loads(ClosureSource)
def _closure(codegen: Codegen, source: ClosureSource) -> None:
    codegen.load(source.freevar)


@_loads(GlobalSource)
def _global(codegen: Codegen, source: GlobalSource) -> None:
    codegen.load_global(source.global_name)


@_loads(BuiltinSource)
def _builtin(codegen: Codegen, source: BuiltinSource) -> None:
    codegen.load_global(source.builtin)


@_loads(GlobalsDictSource)
def _globals_dict(codegen: Codegen, source: GlobalsDictSource) -> None:
    codegen.push_call(globals)


@_loads(ModuleSource)
def _module(codegen: Codegen, source: ModuleSource) -> None:
    codegen.load_const(sys)  # not the dict: code objects are hashed with their constants
    codegen.load_attr("modules")
    codegen.load_item(source.module)


@_loads(AttrSource)
def _attribute(codegen: Codegen, source: AttrSource) -> None:
    if not source.attr.isidentifier():
        _call_with_base(codegen, getattr, source.base, source.attr)
        return
    load_source(codegen, source.base)
    codegen.load_attr(source.attr)


@_loads(InstanceDictSource)
def _instance_dict(codegen: Codegen, source: InstanceDictSource) -> None:
    load_source(codegen, source.base)
    codegen.load_attr("__dict__")


@_loads(CellContentsSource)
def _cell_contents(codegen: Codegen, source: CellContentsSource) -> None:
    load_source(codegen, source.base)
    codegen.load_attr("cell_contents")


@_loads(ItemSource)
def _item(codegen: Codegen, source: ItemSource) -> None:
    load_source(codegen, source.base)
    codegen.load_item(source.key)


@_loads(StoredItemSource)
def _stored_item(codegen: Codegen, source: StoredItemSource) -> None:
    _call_with_base(codegen, stored_item, source.base, source.key)


@_loads(ProxiedSource)
def _proxied(codegen: Codegen, source: ProxiedSource) -> None:
    _call_with_base(codegen, mapping_behind, source.base)


@_loads(TypeSource)
def _type(codegen: Codegen, source: TypeSource) -> None:
    _call_with_base(codegen, type, source.base)


@_loads(DictKeySource)
def _dict_key(codegen: Codegen, source: DictKeySource) -> None:
    _nth_of(codegen, dict.keys, source)


def _nth_of(codegen: Codegen, view: Callable[..., object], source: DictKeySource | DictValueSource) -> None:
    codegen.push_function(list)
    _call_with_base(codegen, view, source.base)
    codegen.call(1)
    codegen.load_item(source.index)


@_loads(DictValueSource)
def _dict_value(codegen: Codegen, source: DictValueSource) -> None:
    _nth_of(codegen, dict.values, source)


@_loads(WeakRefSource)
def _weak_referent(codegen: Codegen, source: WeakRefSource) -> None:
    codegen.push_callable(lambda: load_source(codegen, source.base))
    codegen.call(0)


@_loads(TensorPropertySource)
def _tensor_property(codegen: Codegen, source: TensorPropertySource) -> None:
    dims = () if source.dim is None else (source.dim,)
    codegen.push_callable(lambda: _bound(codegen, source))
    for dim in dims:
        codegen.load_const(dim)
    codegen.call(len(dims))


def _bound(codegen: Codegen, source: TensorPropertySource) -> None:
    load_source(codegen, source.base)
    codegen.load_attr(source.property)


@_loads(CachedResultSource)
def _cached_result(codegen: Codegen, source: CachedResultSource) -> None:
    _call_with_base(codegen, cached_result, source.base, source.key)


@_loads(SubclassesSource)
def _subclasses(codegen: Codegen, source: SubclassesSource) -> None:
    _call_with_base(codegen, type.__subclasses__, source.base)

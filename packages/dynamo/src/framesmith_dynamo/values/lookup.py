"""Look-up of objects in their owners: modules, classes, instances, parts of functions. No user code runs.

An object found in an owner has a source and is guarded there, or is immutable, or breaks the graph. In a trusted
library, the entries of modules and classes are guarded in their dictionaries, one guard for each entry however often it
is used, and the parts of its functions and classes are guarded with them (`is_settled`).
"""

from __future__ import annotations

import functools
import sys
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import torch

from framesmith_dynamo.admission.owners import inside_stdlib
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Found
from framesmith_guards import AttrSource, CellContentsSource, InstanceDictSource, ItemSource, ModuleSource, TypeSource
from framesmith_guards.values.classes import IMMUTABLE_TYPE

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Tracer, Value
    from framesmith_guards import Source

NO_SOURCE = register_break(
    "object-without-source",
    what="a mutable object is used that the compiled code cannot find again",
    why="its state could not be checked at the next call",
    hint="keep the object in a global, an argument, or an attribute of one",
)

# Static look-up: neither `type.__getattribute__` nor `object.__getattribute__` of user objects runs

_type_dict = type.__dict__["__dict__"].__get__
_type_mro = type.__dict__["__mro__"].__get__


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


def class_dict(cls: type) -> Any:
    """`cls.__dict__`, past any metaclass."""
    return _type_dict(cls)


def mro(cls: type) -> tuple[type, ...]:
    """`cls.__mro__`, past any metaclass."""
    return _type_mro(cls)  # type: ignore[no-any-return]


def type_lookup(cls: type, name: str, *, after: type | None = None) -> Found | None:
    """Return the first entry for `name` along the MRO; with `after`, after that class, as `super` does."""
    classes = mro(cls)
    if after is not None:
        classes = classes[classes.index(after) + 1 :]
    for owner in classes:
        entries = class_dict(owner)
        if name in entries:
            return Found(owner, entries[name])
    return None


def instance_dict(obj: object) -> dict[str, Any] | None:
    """Return the instance dictionary; None when there is none or reading it would run user code."""
    found = type_lookup(type(obj), "__dict__")
    if found is None or not (isinstance(found.raw, GetSetDescriptorType) or found.owner is SimpleNamespace):
        return None
    entries = found.raw.__get__(obj)
    return entries if isinstance(entries, dict) else None


def user_method(cls: type, name: str) -> Any | None:
    """Return the Python function that a class or a base (not `object`) defines for a special method, or None."""
    found = type_lookup(cls, name)
    return found.raw if found is not None and isinstance(found.raw, FunctionType) else None


def is_compared_by_code(obj: object) -> bool:
    """Whether an object is a class, or an instance of one, whose metaclass defines comparison or hash."""
    metas = (meta for meta in (type(obj), type(type(obj))) if meta is not type and issubclass(meta, type))
    return any(user_method(meta, name) is not None for meta in metas for name in ("__eq__", "__hash__"))


# Immutable objects

#: Exact types whose objects never change.
IMMUTABLE: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(Ellipsis),
    type(NotImplemented),
    range,
    CodeType,
    MethodDescriptorType,
    WrapperDescriptorType,
    ClassMethodDescriptorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)


def is_immutable(obj: Any) -> bool:
    """Whether an object and all its parts are immutable."""
    cls = type(obj)
    if cls in (tuple, frozenset):
        return all(is_immutable(item) for item in obj)
    if cls is BuiltinFunctionType:
        return obj.__self__ is None or isinstance(obj.__self__, ModuleType | type)
    return cls in IMMUTABLE or (issubclass(cls, type) and bool(obj.__flags__ & IMMUTABLE_TYPE))


# Trusted libraries

#: Distributions whose functions and classes are assumed not to be patched inside, like the standard library's.
TRUSTED: Final = frozenset({"torch", "transformers", "functorch", "torchvision", "numpy", "framesmith_dynamo"})
_OWN: Final = "sys.modules['framesmith_dynamo"
#: Parts of a function or class that are guarded with it.
PARTS: Final = frozenset({
    "__annotations__", "__base__", "__bases__", "__closure__", "__code__", "__defaults__", "__doc__", "__kwdefaults__",
    "__module__", "__mro__", "__name__", "__qualname__", "__wrapped__",
})  # fmt: skip
#: Parts of a descriptor that are guarded in its place: it cannot be referred to weakly.
ACCESSORS: Final = frozenset({"__func__", "fdel", "fget", "fset"})


def is_trusted(module: object) -> bool:
    """Whether a module name belongs to a distribution whose code does not change while a program runs."""
    return isinstance(module, str) and _is_library(module.partition(".")[0])


@functools.cache
def _is_library(name: str) -> bool:
    """Whether a top-level package is trusted; not a user's module that shares a name with the standard library."""
    if name in TRUSTED or name not in sys.stdlib_module_names:
        return name in TRUSTED
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    return origin in (None, "built-in", "frozen") or inside_stdlib(str(origin)) is not None


def is_in_library(source: Source) -> bool:
    """Whether a path starts at a trusted library's module."""
    return isinstance(source.root, ModuleSource) and is_trusted(source.root.module)


def is_library_code(obj: Any) -> bool:
    """Whether an entry of a library's dictionary is the library's own, not one set by a program."""
    cls = type(obj)
    if cls in (classmethod, staticmethod, property):
        obj = obj.fget if cls is property else obj.__func__
    if type(obj) is FunctionType:
        return is_trusted(obj.__globals__.get("__name__"))
    if not issubclass(cls, type) or obj.__flags__ & IMMUTABLE_TYPE:
        return True
    return is_trusted(class_dict(obj).get("__module__"))


def is_settled(source: Source) -> bool:
    """Whether a path leads through an entry of a trusted library to a part guarded with the entry itself.

    Such parts are `PARTS` of functions and classes, and the contents of a class's special entries
    (`__dataclass_fields__`). All parts of the tracer itself are settled as well.
    """
    if not is_in_library(source):
        return False
    if source.root.name.startswith(_OWN):
        return True
    entries, special, inside = 0, False, False
    for step in list(source.chain())[-2::-1]:
        if inside:
            inside = isinstance(step, CellContentsSource) or _is_part(step) or _is_part(step.base)
            if not inside:
                return False
        elif is_entry(step):
            entries += 1
            special = entries > 1 and str(step.key).startswith("__")
        elif _is_part(step):
            inside = True
        elif not isinstance(step, InstanceDictSource) and not _is_accessor(step):
            return special
    return inside


def _is_part(step: Source | None) -> bool:
    return isinstance(step, AttrSource) and step.attr in PARTS


def _is_accessor(step: Source | None) -> TypeGuard[AttrSource]:
    return isinstance(step, AttrSource) and step.attr in ACCESSORS


def is_entry(step: Source | None) -> TypeGuard[ItemSource]:
    """Whether a step of a path names an entry of a module's, class's or object's dictionary."""
    return isinstance(step, ItemSource) and isinstance(step.base, InstanceDictSource)


def is_library_entry(source: Source) -> bool:
    """Whether a path names an entry of a trusted library's dictionary, which is guarded by identity."""
    step: Source | None = source
    if not is_in_library(source):
        return False
    while _is_accessor(step):
        step = step.base
    while is_entry(step):
        step = step.base.base
    return step is source.root and step is not source


# Sources


def home_source(obj: Any) -> Source | None:
    """Return the source of a class, function or module by its own name, or None if it is not found there."""
    if issubclass(type(obj), ModuleType):  # isinstance would read the object's __class__
        name = obj.__name__
        return ModuleSource(name) if sys.modules.get(name) is obj else None
    module, qualname = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or module not in sys.modules:
        return None
    source: Source = ModuleSource(module)
    found: Any = sys.modules[module]
    for step in qualname.split("."):
        entries = (
            found.__dict__ if isinstance(found, ModuleType) else class_dict(found) if isinstance(found, type) else {}
        )
        if step not in entries:
            return None
        found, source = entries[step], ItemSource(InstanceDictSource(source), step)
    return source if found is obj else None


def library_path(tr: Tracer, holder: ModuleType | type) -> Source | None:
    """Return the one path through dictionaries to a module or class of a trusted library; None for others."""
    homes = tr.memo.library_paths
    if holder not in homes:
        name = holder.__name__ if isinstance(holder, ModuleType) else holder.__module__
        homes[holder] = home_source(holder) if is_trusted(name) else None
    return homes[holder]


def class_source(tr: Tracer, cls: type, instance: Source | None = None) -> Source | None:
    """Return the source of a class: in its library, through the first instance found, or under its own name.

    The same source throughout a trace.
    """
    sources = tr.memo.class_sources
    if cls not in sources:
        source = library_path(tr, cls)
        if source is None and instance is not None:
            source = TypeSource(instance)
        elif source is None:
            source = home_source(cls)
            if source is not None:
                tr.guard(source, "ID_MATCH", cls)
        sources[cls] = source
    return sources[cls]


def entry_source(tr: Tracer, cls: type, found: Found, name: str, instance: Source | None = None) -> Source | None:
    """Return the source of the raw entry `name` of `found.owner`, a base of `cls`, without calling descriptors."""
    owner = library_path(tr, found.owner) if is_library_code(found.raw) else None
    if owner is not None:
        return ItemSource(InstanceDictSource(owner), name)
    base = class_source(tr, cls, instance)
    if base is None:
        return None
    if found.owner is cls:
        return ItemSource(InstanceDictSource(base), name)
    step = ItemSource(AttrSource(base, "__mro__"), mro(cls).index(found.owner))
    return ItemSource(InstanceDictSource(step), name)


# Values


def value_at(tr: Tracer, obj: Any, source: Source | None) -> Value:
    """Return the value of an object found at `source` in an owner; without a source only immutable objects
    are allowed.
    """
    if source is not None:
        return tr.wrap(obj, source)
    if is_immutable(obj):
        return tr.constant(obj)
    raise GraphBreak(NO_SOURCE, f"a {type(obj).__module__}.{type(obj).__qualname__}")


#: Kinds of guards implied on a settled part; the items of a container are guarded there, too.
SETTLED_KINDS: Final = frozenset({
    "BOOL_MATCH", "CLASS_LAYOUT", "DUPLICATE_INPUT", "EQUALS_MATCH", "FUNCTION_CODE", "ID_MATCH", "NONE_MATCH",
    "NO_HASATTR", "TYPE_MATCH",
})  # fmt: skip


def guard_same(tr: Tracer, obj: Any, source: Source, first: Source) -> None:
    """Guard that the object known from `first` is at `source`, too."""
    if is_library_entry(source) and isinstance(obj, FunctionType | BuiltinFunctionType | ModuleType | type):
        tr.guard(source, "ID_MATCH", obj)
    else:
        tr.guard(source, "DUPLICATE_INPUT", first)


def at_home(tr: Tracer, obj: Any) -> Value:
    """Return the value of a function or module that the tracer itself refers to, found under its own name."""
    return value_at(tr, obj, home_source(obj))


def entry_value(tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None, step: str = "") -> Value:
    """Return the value of a class entry, or of its attribute `step` (`__func__`, `fget`, ...)."""
    pending = pending_entry(tr, entry.owner, name)
    if pending is not None:
        return pending
    obj = getattr(entry.raw, step) if step else entry.raw
    guard_class(tr, cls, instance)
    if entry.owner.__flags__ & IMMUTABLE_TYPE:
        return tr.constant(obj)
    source = entry_source(tr, cls, entry, name, instance)
    return value_at(tr, obj, AttrSource(source, step) if step and source is not None else source)


def pending_entry(tr: Tracer, owner: type, name: str) -> Value | None:
    """Return the value that the trace has stored into a class under an existing name; None if none."""
    known = tr.memo.classes.get(owner)
    if known is None or known.mutation is None:
        return None
    pending: Value | None = tr.journal.load_attr(known, name)
    return pending


def special_method(tr: Tracer, value: Value, name: str) -> Value | None:
    """Return the Python function of a value's type for a special method, or None."""
    cls = value.python_type()
    entry = type_lookup(cls, name)
    if entry is None or not isinstance(entry.raw, FunctionType):
        return None
    return entry_value(tr, cls, entry, name, value.source)


def guard_class(tr: Tracer, cls: type, instance: Source | None = None) -> None:
    """Guard that a user's class and its bases gain and lose no entries, and keep them of the same kinds.

    Once per class and trace.
    """
    if cls in tr.memo.guarded_classes:
        return
    tr.memo.guarded_classes.add(cls)
    if all(is_trusted(owner.__module__) or owner.__flags__ & IMMUTABLE_TYPE for owner in mro(cls)):
        return
    base = class_source(tr, cls, instance)
    if base is None:
        raise GraphBreak(NO_SOURCE, f"the class {cls.__module__}.{cls.__qualname__}")
    tr.guard(base, "CLASS_LAYOUT", cls)


def slot_check(tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None, *slots: str) -> bool:
    """Whether the type of a class entry has one of these special methods, such as `__get__`; the result is guarded.

    The guard on the class checks its entries, not changes of their types.
    """
    kind = type(entry.raw)
    if not kind.__flags__ & IMMUTABLE_TYPE and kind not in tr.memo.guarded_classes:
        guard_class(tr, cls, instance)
        guard_class(tr, kind, entry_source(tr, cls, entry, name, instance))
    return any(type_lookup(kind, slot) is not None for slot in slots)


def data_descriptor_check(tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None) -> bool:
    """Whether stores and deletes go through a class entry, and not to the instance dictionary."""
    return slot_check(tr, cls, entry, name, instance, "__set__", "__delete__")


def read_first_check(tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None) -> bool:
    """Whether a class entry takes precedence over the instance dictionary in reads: one with `__set__` alone
    does not.
    """
    stores = data_descriptor_check(tr, cls, entry, name, instance)
    return stores and type_lookup(type(entry.raw), "__get__") is not None


def guard_absent_accessor(
    tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None, accessor: str
) -> None:
    """Guard that a user's property has no `fget`, `fset` or `fdel`."""
    source = None if is_trusted(entry.owner.__module__) else entry_source(tr, cls, entry, name, instance)
    if source is not None:
        tr.guard(AttrSource(source, accessor), "NONE_MATCH")

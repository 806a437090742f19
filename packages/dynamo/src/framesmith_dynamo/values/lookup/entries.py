"""Objects found in their owners (modules, classes, instances, parts of functions): sources, values, guards.

An object found in an owner has a source and is guarded there, or is immutable, or breaks the graph. No user code runs.
"""

from __future__ import annotations

import sys
from types import (
    BuiltinFunctionType,
    FunctionType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Found
from framesmith_guards import AttrSource, InstanceDictSource, ItemSource, ModuleSource, TypeSource
from framesmith_guards.values.classes import IMMUTABLE_TYPE, class_dict, mro

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Tracer, Value
    from framesmith_guards import Source
from framesmith_dynamo.values.lookup.libraries import is_library_code, is_library_entry, is_trusted
from framesmith_dynamo.values.lookup.static import is_immutable, type_lookup

NO_SOURCE = register_break(
    "object-without-source",
    what="a mutable object is used that the compiled code cannot find again",
    why="its state could not be checked at the next call",
    hint="keep the object in a global, an argument, or an attribute of one",
)


# Sources


def source_by_name(obj: Any) -> Source | None:
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


def library_path(tr: Tracer, owner: ModuleType | type) -> Source | None:
    """Return the one path through dictionaries to a module or class of a trusted library; None for others."""
    homes = tr.facts.library_paths
    if owner not in homes:
        name = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
        homes[owner] = source_by_name(owner) if is_trusted(name) else None
    return homes[owner]


def class_source(tr: Tracer, cls: type, instance: Source | None = None) -> Source | None:
    """Return the source of a class: in its library, through the first instance found, or under its own name.

    The same source throughout a trace.
    """
    sources = tr.facts.class_sources
    if cls not in sources:
        source = library_path(tr, cls)
        if source is None and instance is not None:
            source = TypeSource(instance)
        elif source is None:
            source = source_by_name(cls)
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
    """Return the value of an object found at `source`; without a source only immutable objects are allowed."""
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


def value_by_name(tr: Tracer, obj: Any) -> Value:
    """Return the value of a function or module that the tracer itself refers to, found under its own name."""
    return value_at(tr, obj, source_by_name(obj))


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
    known = tr.facts.classes.get(owner)
    return None if known is None else tr.journal.stored_attr(known, name)


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
    if cls in tr.facts.guarded_classes:
        return
    tr.facts.guarded_classes.add(cls)
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
    if not kind.__flags__ & IMMUTABLE_TYPE and kind not in tr.facts.guarded_classes:
        guard_class(tr, cls, instance)
        guard_class(tr, kind, entry_source(tr, cls, entry, name, instance))
    return any(type_lookup(kind, slot) is not None for slot in slots)


def data_descriptor_check(tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None) -> bool:
    """Whether stores and deletes go through a class entry, and not to the instance dictionary."""
    return slot_check(tr, cls, entry, name, instance, "__set__", "__delete__")


def read_first_check(tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None) -> bool:
    """Whether a class entry takes precedence over the instance dictionary in reads."""
    stores = data_descriptor_check(tr, cls, entry, name, instance)
    return stores and type_lookup(type(entry.raw), "__get__") is not None


def guard_absent_accessor(
    tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None, accessor: str
) -> None:
    """Guard that a user's property has no `fget`, `fset` or `fdel`."""
    source = None if is_trusted(entry.owner.__module__) else entry_source(tr, cls, entry, name, instance)
    if source is not None:
        tr.guard(AttrSource(source, accessor), "NONE_MATCH")

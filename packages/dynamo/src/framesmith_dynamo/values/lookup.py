"""What is found at a holder: a module, a class, an instance, a part of a function. Read without running user code.

One rule: what is found has a source and is guarded there, or can never change, or breaks the graph. A trusted
library is a case of it: what its modules and classes hold is guarded in their dictionaries, one guard for each entry
whoever uses it, and the parts of its functions and classes are guarded with them (`is_settled`).
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
    what="a mutable object is met where the compiled code cannot find it again",
    why="its state could not be checked on the next call",
    hint="keep the object in a global, an argument, or an attribute of one",
)

# Look-ups that trigger neither `type.__getattribute__` nor `object.__getattribute__` of user objects

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
    """The first entry for `name` along the MRO; with `after`, only behind that class, where `super` looks."""
    classes = mro(cls)
    if after is not None:
        classes = classes[classes.index(after) + 1 :]
    for owner in classes:
        entries = class_dict(owner)
        if name in entries:
            return Found(owner, entries[name])
    return None


def instance_dict(obj: object) -> dict[str, Any] | None:
    """The instance dictionary itself; None when there is none or reading it would run user code."""
    found = type_lookup(type(obj), "__dict__")
    if found is None or not (isinstance(found.raw, GetSetDescriptorType) or found.owner is SimpleNamespace):
        return None
    entries = found.raw.__get__(obj)
    return entries if isinstance(entries, dict) else None


def user_method(cls: type, name: str) -> Any | None:
    """The Python function a class or one of its bases (not `object`) defines for a special method, or None."""
    found = type_lookup(cls, name)
    return found.raw if found is not None and isinstance(found.raw, FunctionType) else None


def is_compared_by_code(obj: object) -> bool:
    """Whether an object is a class, or is of one, that is compared or hashed by its metaclass's own code."""
    metas = (meta for meta in (type(obj), type(type(obj))) if meta is not type and issubclass(meta, type))
    return any(user_method(meta, name) is not None for meta in metas for name in ("__eq__", "__hash__"))


# What never changes

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
    """Whether an object and all it holds can never change."""
    cls = type(obj)
    if cls in (tuple, frozenset):
        return all(is_immutable(item) for item in obj)
    if cls is BuiltinFunctionType:
        return obj.__self__ is None or isinstance(obj.__self__, ModuleType | type)
    return cls in IMMUTABLE or (issubclass(cls, type) and bool(obj.__flags__ & IMMUTABLE_TYPE))


# Trusted libraries

#: Distributions whose functions and classes are taken to stay as they are inside, like the standard library's.
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
    """Whether what a library's dictionary has is the library's own, not something that a program put there."""
    cls = type(obj)
    if cls in (classmethod, staticmethod, property):
        obj = obj.fget if cls is property else obj.__func__
    if type(obj) is FunctionType:
        return is_trusted(obj.__globals__.get("__name__"))
    if not issubclass(cls, type) or obj.__flags__ & IMMUTABLE_TYPE:
        return True
    return is_trusted(class_dict(obj).get("__module__"))


def is_settled(source: Source) -> bool:
    """Whether a path goes on into what a trusted library's dictionary holds, to a part guarded with the entry itself.

    Such parts are `PARTS` of functions and classes, and what a class's special entries (`__dataclass_fields__`) hold.
    All that the tracer itself is made of is settled, too.
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
    """Whether a step of a path names something in a module's, class's or object's dictionary."""
    return isinstance(step, ItemSource) and isinstance(step.base, InstanceDictSource)


def is_library_entry(source: Source) -> bool:
    """Whether a path names something in a trusted library's dictionary: what is there is guarded by identity."""
    step: Source | None = source
    if not is_in_library(source):
        return False
    while _is_accessor(step):
        step = step.base
    while is_entry(step):
        step = step.base.base
    return step is source.root and step is not source


# Where things are


def home_source(obj: Any) -> Source | None:
    """Where a class, function or module can be found again by its own name, or None when it cannot be."""
    if issubclass(type(obj), ModuleType):  # isinstance would ask obj for its __class__
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
    """The one path through dictionaries to a module or class of a trusted library; None for others."""
    homes = tr.memo.library_paths
    if holder not in homes:
        name = holder.__name__ if isinstance(holder, ModuleType) else holder.__module__
        homes[holder] = home_source(holder) if is_trusted(name) else None
    return homes[holder]


def class_source(tr: Tracer, cls: type, instance: Source | None = None) -> Source | None:
    """Where a class can be found: in its library, through the first instance met, or under its own name.

    The same source all through a trace.
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
    """Where the raw entry `name` of `found.owner`, a base of `cls`, can be read without descriptors being called."""
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


# The door


def value_at(tr: Tracer, obj: Any, source: Source | None) -> Value:
    """The value of an object found at `source` inside a holder; without a source only what never changes."""
    if source is not None:
        return tr.wrap(obj, source)
    if is_immutable(obj):
        return tr.constant(obj)
    raise GraphBreak(NO_SOURCE, f"a {type(obj).__module__}.{type(obj).__qualname__}")


#: What a guard on a settled part would say of it; what a container holds is guarded there, too.
SETTLED_KINDS: Final = frozenset({
    "BOOL_MATCH", "CLASS_LAYOUT", "DUPLICATE_INPUT", "EQUALS_MATCH", "FUNCTION_CODE", "ID_MATCH", "NONE_MATCH",
    "NO_HASATTR", "TYPE_MATCH",
})  # fmt: skip


def guard_same(tr: Tracer, obj: Any, source: Source, first: Source) -> None:
    """Rely on the object that the trace knows from `first` being at `source`, too."""
    if is_library_entry(source) and isinstance(obj, FunctionType | BuiltinFunctionType | ModuleType | type):
        tr.guard(source, "ID_MATCH", obj)
    else:
        tr.guard(source, "DUPLICATE_INPUT", first)


def at_home(tr: Tracer, obj: Any) -> Value:
    """The value of a function or module that the tracer comes to by itself: found where its own name says."""
    return value_at(tr, obj, home_source(obj))


def entry_value(tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None, step: str = "") -> Value:
    """The value of a class entry, or of what its attribute `step` (`__func__`, `fget`, ...) holds."""
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
    """What the trace has stored into a class under a name that it has; None where it has not."""
    known = tr.memo.classes.get(owner)
    if known is None or known.mutation is None:
        return None
    pending: Value | None = tr.journal.load_attr(known, name)
    return pending


def special_method(tr: Tracer, value: Value, name: str) -> Value | None:
    """The Python function that the type of a value has for a special method, or None."""
    cls = value.python_type()
    entry = type_lookup(cls, name)
    if entry is None or not isinstance(entry.raw, FunctionType):
        return None
    return entry_value(tr, cls, entry, name, value.source)


def guard_class(tr: Tracer, cls: type, instance: Source | None = None) -> None:
    """Rely on a user's class and its bases gaining and losing no entries, and keeping them of the same kinds.

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
    """Whether the type of a class entry has one of these special methods, `__get__` say; what the type has is guarded.

    The guard on the class itself says what its entries are, not what their types become.
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
    """Whether a class entry is read before the instance dictionary is: one with `__set__` alone is not."""
    stores = data_descriptor_check(tr, cls, entry, name, instance)
    return stores and type_lookup(type(entry.raw), "__get__") is not None


def guard_no_accessor(tr: Tracer, cls: type, entry: Found, name: str, instance: Source | None, accessor: str) -> None:
    """Rely on a user's property not having `fget`, `fset` or `fdel`."""
    source = None if is_trusted(entry.owner.__module__) else entry_source(tr, cls, entry, name, instance)
    if source is not None:
        tr.guard(AttrSource(source, accessor), "NONE_MATCH")

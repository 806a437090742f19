"""Trusted libraries, whose entries are guarded in their modules' and classes' dictionaries.

One guard for each entry, however often it is used; the parts of its functions and classes are guarded with them
(`is_settled`).
"""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from framesmith_dynamo.admission.owners import inside_stdlib
from framesmith_guards import AttrSource, CellContentsSource, InstanceDictSource, ItemSource, ModuleSource
from framesmith_guards.stacks import is_own
from framesmith_guards.values.classes import IMMUTABLE_TYPE, class_dict

if TYPE_CHECKING:
    from framesmith_guards import Source

#: Distributions whose functions and classes are assumed not to be patched inside, like the standard library's.
TRUSTED: Final = frozenset({"torch", "transformers", "functorch", "torchvision", "numpy", "framesmith_dynamo"})
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
    if is_own(cast(ModuleSource, source.root).module):
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

"""Static look-ups: what a class or an instance holds, read without running any user code.

`type.__getattribute__` and `object.__getattribute__` are never triggered on user objects; only `__dict__` slots of
the built-in kind are read.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, Final

from framesmith_guards import AttrSource, ModuleSource

if TYPE_CHECKING:
    from framesmith_guards import Source

#: Distributions whose functions and classes are taken to stay as they are, like the standard library's: no guards on
#: their code and on what their classes and modules hold.
TRUSTED: Final = frozenset({"torch", "transformers", "functorch", "torchvision", "numpy", "framesmith_dynamo"})
_STDLIB: Final = sysconfig.get_paths()["stdlib"]

_type_dict = type.__dict__["__dict__"].__get__
_type_mro = type.__dict__["__mro__"].__get__


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of a class dictionary: the class that has it and the raw object (descriptors not called)."""

    owner: type
    raw: Any


def class_dict(cls: type) -> Any:
    """`cls.__dict__`, past any metaclass."""
    return _type_dict(cls)


def mro(cls: type) -> tuple[type, ...]:
    """`cls.__mro__`, past any metaclass."""
    return _type_mro(cls)  # type: ignore[no-any-return]


def type_lookup(cls: type, name: str, *, after: type | None = None) -> Found | None:
    """The first entry for `name` along the MRO; with `after`, only in classes behind that one (what `super`
    searches).
    """
    classes = mro(cls)
    if after is not None:
        classes = classes[classes.index(after) + 1 :]
    for owner in classes:
        entries = class_dict(owner)
        if name in entries:
            return Found(owner, entries[name])
    return None


def has_slot(raw: object, name: str) -> bool:
    """Whether the type of a raw class attribute defines a special method such as `__get__` or `__set__`."""
    return type_lookup(type(raw), name) is not None


def is_data_descriptor(raw: object) -> bool:
    """Whether a class attribute takes precedence over the instance dictionary."""
    return has_slot(raw, "__set__") or has_slot(raw, "__delete__")


def instance_dict(obj: object) -> dict[str, Any] | None:
    """The instance dictionary itself; None when there is none or reading it would run user code."""
    found = type_lookup(type(obj), "__dict__")
    if found is None or not isinstance(found.raw, GetSetDescriptorType):
        return None
    entries = found.raw.__get__(obj)
    return entries if isinstance(entries, dict) else None


def user_method(cls: type, name: str) -> Any | None:
    """The Python function a class or one of its bases (not `object`) defines for a special method, or None."""
    found = type_lookup(cls, name)
    return found.raw if found is not None and isinstance(found.raw, FunctionType) else None


#: `Py_TPFLAGS_HEAPTYPE`: the class was made while the program ran, by a `class` statement or by C code that asked for
#: it.
HEAP_TYPE: Final = 1 << 9
C_CALLABLES: Final = (
    BuiltinFunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
    ClassMethodDescriptorType,
    type([].__len__),
)
C_DATA: Final = (GetSetDescriptorType, MemberDescriptorType)


def is_trusted(module: object) -> bool:
    """Whether a module name belongs to a distribution whose code does not change while a program runs."""
    return isinstance(module, str) and _is_library(module.partition(".")[0])


@functools.cache
def _is_library(name: str) -> bool:
    """Whether a top-level package is trusted; a user's module that only shares a name with the standard library is
    not.
    """
    if name in TRUSTED or name not in sys.stdlib_module_names:
        return name in TRUSTED
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    return origin in (None, "built-in", "frozen") or str(origin).startswith(_STDLIB)


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
        found, source = entries[step], AttrSource(source, step)
    return source if found is obj else None

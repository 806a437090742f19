"""Static look-up: neither `type.__getattribute__` nor `object.__getattribute__` of user objects runs."""

from __future__ import annotations

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
from typing import Any, Final

import torch

from framesmith_dynamo.values.base import Found
from framesmith_guards.values.classes import IMMUTABLE_TYPE, class_dict, mro


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


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

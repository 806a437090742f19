"""Handles to objects that guards compare by identity, without keeping a user's objects alive.

Note [Identity without ownership]: an object is held strongly only if it lives as long as the interpreter anyway
(singletons, small immutable builtins, what an imported module exports under its own name). Everything else is held
by a weak reference; a check compares its address, and dies with the object, so that a reused address cannot match.
"""

from __future__ import annotations

import builtins
import sys
import types
import weakref
from collections.abc import Callable
from typing import Final

import torch

from framesmith_guards.errors import GuardError

_IMMORTAL: Final = (
    types.NoneType,
    types.EllipsisType,
    types.NotImplementedType,
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    types.ModuleType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


def is_exported(value: object) -> bool:
    """Whether an imported module exports `value` under the value's own qualified name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    found: object = module
    for part in value.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found is value


def lives_forever(value: object) -> bool:
    """Whether holding `value` strongly keeps nothing alive that would otherwise be freed."""
    if isinstance(value, _IMMORTAL) or is_exported(value):
        return True
    owner = getattr(value, "__self__", None)
    return isinstance(value, types.BuiltinFunctionType) and (owner is None or isinstance(owner, types.ModuleType))


class Ref:
    """A handle to one object, equal to another handle of the same living object."""

    __slots__ = ("_strong", "_weak", "address", "text")

    def __init__(self, value: object) -> None:
        self.address: Final = id(value)
        self.text: Final = describe(value)
        self._weak: weakref.ref[object] | None = None
        self._strong: object = None
        if lives_forever(value):
            self._strong = value
            return
        try:
            self._weak = weakref.ref(value)
        except TypeError:
            raise GuardError(
                f"cannot guard the identity of {self.text}: a {type(value).__name__} has no weak references, and a "
                "guard must not keep it alive; guard its type, length, keys or elements instead"
            ) from None

    @property
    def weak(self) -> bool:
        return self._weak is not None

    @property
    def reference(self) -> weakref.ref[object] | None:
        """The weak reference to the object; None to one that lives forever."""
        return self._weak

    def get(self) -> object:
        """Return the object; ReferenceError if it is gone."""
        if self._weak is None:
            return self._strong
        value = self._weak()
        if value is None:
            raise ReferenceError(f"{self.text} is gone")
        return value

    def refers_to(self, value: object) -> bool:
        """Whether this is a handle of `value`."""
        return id(value) == self.address and (self._weak is None or self._weak() is value)

    def on_death(self, callback: Callable[[weakref.ref[object]], None]) -> weakref.ref[object] | None:
        """Return a weak reference that calls back when the object dies; None for one that does not."""
        return None if self._weak is None else weakref.ref(self.get(), callback)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self.address == other.address and self.get() is other.get()

    def __hash__(self) -> int:
        return hash(self.address)

    def __repr__(self) -> str:
        return f"<Ref {self.text}>"


#: Types of values that are described by their repr.
_SHOWN: Final = (
    *(int, float, bool, str, bytes, complex, types.NoneType, types.EllipsisType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def describe(value: object) -> str:
    """Return one short line about any value; runs no user code."""
    cls = type(value)
    if isinstance(value, type):
        return f"type {qualified_name(value)}"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return f"function {value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__dict__.get('__name__')}"
    if isinstance(value, types.CodeType):
        return f"code {value.co_qualname}"
    if cls in _SHOWN:
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"{qualified_name(cls)} object at {id(value):#x}"


def qualified_name(cls: type) -> str:
    """Return `module.qualname`, without the module for builtins."""
    return cls.__qualname__ if cls.__module__ == builtins.__name__ else f"{cls.__module__}.{cls.__qualname__}"

"""Classes whose instances have no C state other than a dictionary and slots."""

from __future__ import annotations

from types import MemberDescriptorType, SimpleNamespace
from typing import Final

from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_guards.values.classes import IMMUTABLE_TYPE, class_dict

#: Classes made in C whose objects have a dictionary at most.
PLAIN_BASES: Final = (object, SimpleNamespace)
#: The size of a pointer in bytes.
POINTER: Final = 8


def has_plain_layout(cls: type) -> bool:
    """Whether instances are `object` plus a dictionary or slots, without other C state."""
    if not all(base in PLAIN_BASES or has_python_layout(base) for base in cls.__mro__):
        return False
    new = type_lookup(cls, "__new__")
    return (
        new is not None
        and (new.owner in PLAIN_BASES or isinstance(new.raw, staticmethod))
        and cls.__basicsize__ <= _largest(cls)
    )


def _largest(cls: type) -> int:
    """The size in bytes of instances whose only fields are slots and a list of weak references."""
    slots = sum(isinstance(raw, MemberDescriptorType) for base in cls.__mro__ for raw in class_dict(base).values())
    return object.__basicsize__ + POINTER * (slots + 1)


def has_python_layout(cls: type) -> bool:
    """Whether one class of an MRO may have been made by a `class` statement."""
    return not cls.__flags__ & IMMUTABLE_TYPE

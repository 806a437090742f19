"""Whether a real object has an attribute of its own, without running Python code of its class."""

from __future__ import annotations

from types import GetSetDescriptorType, MemberDescriptorType

from framesmith_guards.values.classes import IMMUTABLE_TYPE

#: Fields whose read may evaluate an expression of the program (PEP 649, 695, 696); objects that can change have them.
EVALUATED_WHEN_READ = frozenset({"__annotations__", "__value__", "__bound__", "__constraints__", "__default__"})


def has_own_attribute(obj: object, name: str) -> bool:
    """Whether `name` is in the instance's dict, in a filled slot or C field, or (for a class) in its namespace."""
    if name in instance_dict(obj):
        return True
    for base in type(obj).__mro__:
        found = base.__dict__.get(name)
        if isinstance(found, MemberDescriptorType | GetSetDescriptorType):
            return _is_filled(found, obj)
        if found is not None:
            return False
    return False


def _is_filled(descriptor: MemberDescriptorType | GetSetDescriptorType, obj: object) -> bool:
    if isinstance(descriptor, GetSetDescriptorType) and descriptor.__name__ in EVALUATED_WHEN_READ:
        return not (isinstance(obj, type) and obj.__flags__ & IMMUTABLE_TYPE)
    try:
        descriptor.__get__(obj, type(obj))
    except (AttributeError, ValueError):  # an empty slot; an empty cell
        return False
    return True


def instance_dict(obj: object) -> dict[str, object]:
    """An object's `__dict__`, or an empty dict when it has none."""
    lookup = type.__getattribute__ if isinstance(obj, type) else object.__getattribute__
    try:
        found = lookup(obj, "__dict__")
    except AttributeError:
        return {}
    return dict(found) if not isinstance(found, dict) else found

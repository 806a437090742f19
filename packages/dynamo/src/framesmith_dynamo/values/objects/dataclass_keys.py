"""Objects of frozen dataclasses as keys: hashed and compared by their fields."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_guards.values.classes import class_dict


@dataclass(frozen=True)
class RecordKey:
    """The hash key of an object that equals others of its class with equal fields."""

    cls: type
    fields: tuple[object, ...]


def fields_compared(cls: type) -> tuple[str, ...] | None:
    """Return the fields by which a frozen dataclass hashes and compares its objects; None of other classes."""
    found = type_lookup(cls, "__eq__")
    hashed = type_lookup(cls, "__hash__")
    if found is None or hashed is None or found.owner is not hashed.owner or found.owner is not cls:
        return None
    params, fields = (class_dict(cls).get(name) for name in ("__dataclass_params__", "__dataclass_fields__"))
    if params is None or not (params.eq and params.frozen) or not isinstance(fields, dict):
        return None
    if not all(is_generated(method.raw) for method in (found, hashed)):
        return None
    kind = dataclasses._FIELD  # type: ignore[attr-defined]
    names = tuple(name for name, one in fields.items() if one.compare and one._field_type is kind)
    hidden = any(fields[name].hash not in (None, True) for name in names)
    return None if hidden else names


def is_generated(method: object) -> bool:
    """Whether `dataclasses` made a method: one without a file."""
    return isinstance(method, FunctionType) and method.__code__.co_filename == "<string>"


def make_hashable(*given: Any) -> Any:
    """Called by compiled code: return a new object, given its attributes' values, its class, and their names."""
    *values, cls, names = given
    made = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made

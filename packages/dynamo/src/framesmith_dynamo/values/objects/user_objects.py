"""Wrappers of plain objects: instances of Python classes, objects known by identity alone, enum members."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.attribute_dicts.owners import note_instance_dict
from framesmith_dynamo.values.base import Found, Tracer, Value
from framesmith_dynamo.values.constants.constant import fold, plain_arguments
from framesmith_dynamo.values.known import Known
from framesmith_dynamo.values.lookup.entries import entry_source, guard_class, value_at
from framesmith_dynamo.values.lookup.layouts import has_plain_layout
from framesmith_dynamo.values.lookup.libraries import is_trusted
from framesmith_dynamo.values.lookup.static import instance_dict, is_immutable, type_lookup
from framesmith_dynamo.values.objects.classes import CONSTRUCTION, ClassValue, constructs_family
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.wrap_registry import Family, build, builds_family, wraps_family
from framesmith_guards import ItemSource

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Args, Kwargs
    from framesmith_guards import Source


class EnumValue(Known, ObjectValue):
    """A member of an Enum class: a constant with attributes and methods."""

    __slots__ = ()
    exact_operators = True

    def as_proxy(self) -> Any:
        return self.obj

    def find_attribute(self, tr: Tracer, name: str) -> Value | None:
        found = type_lookup(self.cls, name) if name in ("name", "value") else None
        if found is not None and is_trusted(found.owner.__module__):
            return super().find_attribute(tr, f"_{name}_")
        return super().find_attribute(tr, name)

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name in ("__setattr__", "__delattr__", "__init__") or found.owner not in (object, str, int, float, tuple):
            return super().call_c_method(tr, found, name, args, kwargs)
        plain_args, plain_kwargs = plain_arguments(args, kwargs)
        return fold(tr, found.raw, (self.obj, *plain_args), plain_kwargs)

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        found = type_lookup(self.cls, "__eq__")
        if op in ("==", "!=") and found is not None and found.owner in (object, str, int) and other.can_be_constant():
            same = self.obj == other.as_constant()
            return tr.constant(bool(same) == (op == "=="))
        return super().compare(tr, op, other)


def _is_enum(obj: Any) -> bool:
    return issubclass(type(obj), Enum)


@wraps_family(Family.ENUM, _is_enum)
def wrap_enum(tr: Tracer, obj: Enum, source: Source) -> Value:
    """Wrap an enum member found at a source, guarded by identity."""
    tr.guard(source, "ID_MATCH", obj)
    guard_class(tr, type(obj), source)
    value = EnumValue(type(obj), obj, source=source)
    note_instance_dict(tr, value)
    return value


def _build_enum(tr: Tracer, obj: Enum) -> Value:
    """Return the value of a member that the trace has looked up, with its source in the class."""
    cls, own = type(obj), instance_dict(obj) or {}
    for name, key in (("_member_map_", own.get("_name_")), ("_value2member_map_", own.get("_value_"))):
        found = type_lookup(cls, name)
        if found is not None and is_immutable(key) and found.raw.get(key) is obj:
            source = entry_source(tr, cls, found, name)
            return value_at(tr, obj, None if source is None else ItemSource(source, key))
    return value_at(tr, obj, None)


builds_family(Family.ENUM, _is_enum)(_build_enum)


@constructs_family(lambda cls: issubclass(cls, Enum))
def construct_enum(tr: Tracer, self: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """`Color(value)`: look up a member."""
    plain_args, plain_kwargs = plain_arguments(args, kwargs)
    missing = type_lookup(self.cls, "_missing_")
    if missing is not None and not is_trusted(missing.owner.__module__):
        raise GraphBreak(CONSTRUCTION, f"{self.describe()}, which has its own _missing_")
    try:
        return build(tr, self.cls(*plain_args, **plain_kwargs))
    except ValueError as error:
        tr.raise_(ValueError, *error.args)


def _is_plain_object(obj: Any) -> bool:
    return has_plain_layout(type(obj))


@wraps_family(Family.OBJECT, _is_plain_object)
def wrap_plain_object(tr: Tracer, obj: Any, source: Source) -> Value:
    """Wrap an instance of a class written in Python: guarded by type; attributes are guarded when they are read."""
    tr.guard(source, "TYPE_MATCH", type(obj))
    guard_class(tr, type(obj), source)
    value = ObjectValue(type(obj), obj, source=source)
    note_instance_dict(tr, value)
    return value

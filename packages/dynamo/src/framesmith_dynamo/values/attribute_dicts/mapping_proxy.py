"""Mapping proxies: read-only views of a dict or other mapping, or of the entries of a class (`vars(cls)`)."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.attribute_dicts.attribute_dict import AttributeDictValue
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.lookup.entries import NO_SOURCE, class_source, entry_value, guard_class
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import InstanceDictSource, ProxiedSource, mapping_behind
from framesmith_guards.values.classes import IMMUTABLE_TYPE, class_dict

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class ClassEntries(AttributeDictValue):
    """The entries of one class, as its mapping proxy shows them. Classes do not change while tracing."""

    __slots__ = ("cls",)

    def __init__(self, tr: Tracer, cls: type) -> None:
        where = class_source(tr, cls)
        super().__init__(tr, None if where is None else InstanceDictSource(where))
        self.cls = cls

    def describe(self) -> str:
        return f"the dictionary of the class {self.cls.__qualname__}"

    def own(self, tr: Tracer, name: str) -> Value | None:
        entries = class_dict(self.cls)
        if name in entries:
            return entry_value(tr, self.cls, Found(self.cls, entries[name]), name, None)
        guard_class(tr, self.cls)
        return None

    def existing(self) -> tuple[str, ...]:
        return tuple(class_dict(self.cls))

    def present(self) -> list[str]:
        return list(class_dict(self.cls))

    def names(self, tr: Tracer) -> list[str]:
        if not self.cls.__flags__ & IMMUTABLE_TYPE and self.source is None:
            raise GraphBreak(NO_SOURCE, self.describe())
        return super().names(tr)


class MappingProxyValue(Value):
    """A read-only view of a mapping: an existing `MappingProxyType`, or the result of `vars(cls)`."""

    python_types = (MappingProxyType,)
    exact_operators = True
    __slots__ = ("mapping",)

    def __init__(self, mapping: Value, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.mapping = mapping

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(MappingProxyType)
        if not hasattr(MappingProxyType, name):
            tr.raise_(AttributeError, f"'mappingproxy' object has no attribute '{name}'")
        return BuiltinMethodValue(self, name)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        self.getattr_(tr, name)
        return self.mapping.call_method(tr, name, args, kwargs)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        return self.mapping.getitem(tr, key)

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        tr.raise_(TypeError, "'mappingproxy' object does not support item assignment")

    def delitem(self, tr: Tracer, key: Value) -> None:
        tr.raise_(TypeError, "'mappingproxy' object does not support item deletion")

    def contains(self, tr: Tracer, item: Value) -> Value:
        return self.mapping.contains(tr, item)

    def len_(self, tr: Tracer) -> Value:
        return self.mapping.len_(tr)

    def bool_(self, tr: Tracer) -> bool:
        return self.mapping.bool_(tr)

    def iter_(self, tr: Tracer) -> Value:
        return self.mapping.iter_(tr)

    def unpack(self, tr: Tracer) -> list[Value]:
        return self.mapping.unpack(tr)

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return operations.compare(tr, op, self.mapping, shown(other))

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self.mapping.binary_op(tr, op, shown(other))

    def hash_key(self, tr: Tracer) -> object:
        return self.mapping.hash_key(tr)

    def referents(self) -> Iterable[Value]:
        return (self.mapping,)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        codegen.push_call(MappingProxyType, (self.mapping,))


def shown(value: Value) -> Value:
    """Return the mapping behind a proxy; other values unchanged."""
    return value.mapping if isinstance(value, MappingProxyValue) else value


def class_proxy(tr: Tracer, cls: type) -> Value:
    """`vars(cls)`."""
    entries = ClassEntries(tr, cls)
    return MappingProxyValue(entries, source=entries.source)


@wraps_type(MappingProxyType)
def wrap_mapping_proxy(tr: Tracer, obj: MappingProxyType[Any, Any], source: Source) -> Value:
    """Wrap a mapping proxy found at a source: the mapping behind it is guarded as it is read."""
    tr.guard(source, "TYPE_MATCH", MappingProxyType)
    return MappingProxyValue(tr.wrap(mapping_behind(obj), ProxiedSource(source)), source=source)


@handles(MappingProxyType)
def make_mapping_proxy(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`MappingProxyType(mapping)`."""
    own = args[0].python_type() if args else object
    if len(args) != 1 or kwargs or issubclass(own, list | tuple) or type_lookup(own, "__getitem__") is None:
        refuse(tr, MappingProxyType, args, kwargs)
    return MappingProxyValue(args[0])

"""`types.SimpleNamespace` and classes that extend it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.attribute_dicts.instance_dict import InstanceDictValue
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.lookup.layouts import has_plain_layout
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.classes import CONSTRUCTION
from framesmith_dynamo.values.objects.objects import OBJECT_FAMILIES, ObjectValue

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class NamespaceValue(ObjectValue):
    """A namespace made in the trace."""

    __slots__ = ()

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        codegen.push_call(SimpleNamespace.__new__, (), (self.cls,))


OBJECT_FAMILIES[SimpleNamespace] = NamespaceValue


@c_method("__new__", SimpleNamespace)
def _new(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    if not has_plain_layout(cls) or type_lookup(cls, "__del__") is not None:
        raise GraphBreak(CONSTRUCTION, f"{cls.__module__}.{cls.__qualname__}")
    value = NamespaceValue(cls)
    value.track(tr)
    return value


@c_method("__init__", SimpleNamespace)
def _init(tr: Tracer, self: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
    if args:
        refuse(tr, SimpleNamespace, args, kwargs)
    for name, value in kwargs.items():
        self.store_own(tr, name, value)
    return tr.constant(None)


def _compared(tr: Tracer, op: str, self: ObjectValue, args: Args) -> Value:
    [other] = args
    if not isinstance(other, ObjectValue) or not issubclass(other.cls, SimpleNamespace):
        return tr.constant(NotImplemented)
    return operations.compare(tr, op, InstanceDictValue(tr, self), InstanceDictValue(tr, other))


@c_method("__eq__", SimpleNamespace)
def _eq(tr: Tracer, self: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
    return _compared(tr, "==", self, args)


@c_method("__ne__", SimpleNamespace)
def _ne(tr: Tracer, self: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
    return _compared(tr, "!=", self, args)

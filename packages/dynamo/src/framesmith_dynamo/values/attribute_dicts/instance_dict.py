"""`obj.__dict__` of an object value: reads and stores the object's own attributes."""

from __future__ import annotations

from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

import torch

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.attribute_dicts.attribute_dict import AttributeDictValue, ModuleDictValue
from framesmith_dynamo.values.attribute_dicts.owners import INSTANCE_DICT
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.namespaces import import_name, namespace_source
from framesmith_guards import InstanceDictSource
from framesmith_sideeffects import DELETED

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


#: Objects with attributes that have no InstanceDictValue: their other state is in the journal, too.
_WITHOUT_VALUE = (torch.Tensor, FunctionType)


class InstanceDictValue(AttributeDictValue):
    """The dictionary of an object's own attributes. `owner` is an object value."""

    __slots__ = ("owner",)

    def __init__(self, tr: Tracer, owner: Any) -> None:
        super().__init__(tr, InstanceDictSource(owner.source) if owner.source is not None else None)
        self.owner = owner

    def describe(self) -> str:
        return f"the __dict__ of {self.owner.describe()}"

    def real_object(self) -> Any:
        return self.owner.entries()

    def is_same(self, other: Value) -> bool:
        return isinstance(other, InstanceDictValue) and other.owner is self.owner

    def existing(self) -> tuple[str, ...]:
        return tuple(self.owner.entries() or ())

    def present(self) -> list[str]:
        existing, journal = self.existing(), self.tracer.journal
        pending = journal.pending_attrs(self.owner) if self.owner.mutation is not None else {}
        moved = {name for name in pending if journal.was_deleted(self.owner, name)}
        names = [name for name in existing if name not in moved]
        added = [name for name, value in pending.items() if value is not DELETED]
        return names + [name for name in added if (name not in existing or name in moved) and not self._is_slot(name)]

    def _is_slot(self, name: str) -> bool:
        found = type_lookup(self.owner.cls, name)
        return found is not None and isinstance(found.raw, MemberDescriptorType)

    def name_of(self, key: Value) -> str:
        """Return the attribute that a key names. A slot breaks: its value is not in the dictionary."""
        name = super().name_of(key)
        if self._is_slot(name):
            raise GraphBreak(INSTANCE_DICT, f"the slot {name!r} of {self.owner.describe()}")
        return name

    def own(self, tr: Tracer, name: str) -> Value | None:
        value: Value | None = self.owner.own_attribute(tr, name)
        return value

    def store(self, tr: Tracer, name: str, value: Value) -> None:
        self.owner.store_own(tr, name, value)

    def delete(self, tr: Tracer, name: str) -> None:
        self.owner.delete_own(tr, name)

    def referents(self) -> tuple[Value, ...]:
        return (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen(self.owner)
        codegen.load_attr("__dict__")


def wrap_attribute_dict(tr: Tracer, obj: dict[Any, Any], source: Source) -> Value | None:
    """Return the value of a dict of attributes of a module, or of an object known to the trace; else None."""
    owner = tr.facts.instance_dicts.get(id(obj))
    if owner is not None:
        assert owner.source is not None
        if issubclass(owner.python_type(), _WITHOUT_VALUE):
            raise GraphBreak(INSTANCE_DICT, f"the __dict__ of {owner.describe()} is used by itself")
        tr.guard(source, "DUPLICATE_INPUT", InstanceDictSource(owner.source))
        return InstanceDictValue(tr, owner)
    if obj is not tr.root_globals and import_name(obj) is None:
        return None
    tr.guard(source, "DUPLICATE_INPUT", namespace_source(tr, obj))
    return ModuleDictValue(tr, obj)

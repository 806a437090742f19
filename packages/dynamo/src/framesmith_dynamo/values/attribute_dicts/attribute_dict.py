"""`__dict__`s as values: dictionaries of attributes, read and stored through their owner.

An object's own (`instance_dict`), a module's, a class's (`mapping_proxy`): the same entries that attribute access reads
and stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values import namespaces
from framesmith_dynamo.values.attribute_dicts.owners import INSTANCE_DICT
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.containers import DictValue, MappingValue, new_dict
from framesmith_sideeffects import DELETED

if TYPE_CHECKING:
    from framesmith_guards import Source


class AttributeDictValue(MappingValue):
    """A dictionary of attributes. A subclass gives access to them: `own`, `store`, `delete`, `existing`, `present`."""

    python_types = (dict,)
    __slots__ = ("tracer",)

    def __init__(self, tr: Tracer, source: Source | None) -> None:
        super().__init__(source=source)
        self.tracer = tr

    def own(self, tr: Tracer, name: str) -> Value | None:
        """Return the current entry of a name, or None; guarded either way."""
        raise NotImplementedError

    def store(self, tr: Tracer, name: str, value: Value) -> None:
        raise NotImplementedError

    def delete(self, tr: Tracer, name: str) -> None:
        """Delete an existing entry."""
        raise NotImplementedError

    def existing(self) -> tuple[str, ...]:
        """The names before the trace."""
        raise NotImplementedError

    def present(self) -> list[str]:
        """Return all names in order, pending stores included."""
        raise NotImplementedError

    def names(self, tr: Tracer) -> list[str]:
        """Return all names in order; those before the trace are guarded."""
        if self.source is not None:
            tr.guard(self.source, "DICT_KEYS", self.existing())
        return self.present()

    def has_changed(self) -> bool:
        return self.present() != list(self.existing())

    def size_now(self) -> int:
        return len(self.present())

    def name_of(self, key: Value) -> str:
        """Return the attribute that a key names."""
        name = key.as_constant()
        if type(name) is not str:
            raise GraphBreak(INSTANCE_DICT, f"the key {name!r} of {self.describe()}")
        return name

    # The mapping protocol

    def keys_now(self, tr: Tracer) -> list[Value]:
        return [tr.constant(name) for name in self.names(tr)]

    def values_now(self, tr: Tracer) -> list[Value]:
        return [self.getitem(tr, key) for key in self.keys_now(tr)]

    def lookup(self, tr: Tracer, key: Value) -> Value | None:
        return self.own(tr, self.name_of(key))

    def snapshot(self, tr: Tracer) -> DictValue:
        """Return a plain dict value with the current contents."""
        return new_dict(tr, self.pairs_now(tr))

    def getitem(self, tr: Tracer, key: Value) -> Value:
        value = self.lookup(tr, key)
        if value is None:
            tr.raise_(KeyError, key)
        return value

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        self.store(tr, self.name_of(key), value)

    def delitem(self, tr: Tracer, key: Value) -> None:
        self.getitem(tr, key)
        self.delete(tr, self.name_of(key))

    def contains(self, tr: Tracer, item: Value) -> Value:
        return tr.constant(self.lookup(tr, item) is not None)

    def len_(self, tr: Tracer) -> Value:
        return tr.constant(len(self.names(tr)))

    def iter_(self, tr: Tracer) -> Value:
        return self.snapshot(tr).iter_(tr)

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in ("==", "!=") or not isinstance(other, MappingValue):
            return None
        if other is self:
            return tr.constant(op == "==")
        return self.snapshot(tr).compare(tr, op, other.snapshot(tr) if isinstance(other, AttributeDictValue) else other)

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self.snapshot(tr).binary_op(tr, op, other)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name in READERS:
            return self.snapshot(tr).call_method(tr, name, args, kwargs)
        return super().call_method(tr, name, args, kwargs)

    def m_pop(self, tr: Tracer, key: Value, default: Value | None = None, /) -> Value:
        value = self.lookup(tr, key)
        if value is not None:
            self.delitem(tr, key)
            return value
        return tr.raise_(KeyError, key) if default is None else default


#: Methods that can run on a plain copy of the current contents.
READERS: Final = frozenset({"copy", "__or__", "__reversed__"})


class ModuleDictValue(AttributeDictValue):
    """A module's dictionary: `globals()`, `vars(module)`. `entries` is the real one."""

    __slots__ = ("entries",)

    def __init__(self, tr: Tracer, entries: namespaces.Entries) -> None:
        super().__init__(tr, namespaces.namespace_source(tr, entries))
        self.entries = entries

    def is_same(self, other: Value) -> bool:
        return isinstance(other, ModuleDictValue) and other.entries is self.entries

    def describe(self) -> str:
        return f"the globals of {self.entries.get('__name__')}"

    def own(self, tr: Tracer, name: str) -> Value | None:
        value = namespaces.load(tr, self.entries, name)
        if value is None:
            namespaces.guard_absence(tr, self.entries, name)
        return value

    def store(self, tr: Tracer, name: str, value: Value) -> None:
        namespaces.store(tr, self.entries, name, value)

    def delete(self, tr: Tracer, name: str) -> None:
        namespaces.delete(tr, self.entries, name)

    def existing(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def present(self) -> list[str]:
        pending = self.tracer.journal.pending_globals(self.entries)
        moved = [name for name, change in pending.items() if change.deletes or name not in self.entries]
        kept = [name for name in self.entries if name not in moved]
        return kept + [name for name in moved if pending[name].new is not DELETED]

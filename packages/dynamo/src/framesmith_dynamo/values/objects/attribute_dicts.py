"""`__dict__`s as values: dictionaries of attributes, whose entries are read and stored where the attributes are.

An object's own (`instance_dicts`), a module's, a class's (`mapping_proxies`). They are the entries that attribute
access reads and stores, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values import namespaces
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.containers import DictValue, DictView, KeysView, new_dict
from framesmith_sideeffects import DELETED

if TYPE_CHECKING:
    from framesmith_guards import Source

INSTANCE_DICT = register_break(
    "instance-dict",
    what="an object's __dict__ is used in a way that cannot be followed",
    why="the tracer keeps attributes in its journal, not in a dictionary",
    hint="use getattr and setattr",
)


class AttributeDictValue(Value):
    """A dictionary of attributes. A subclass says where these are: `own`, `store`, `delete`, `existing`, `present`."""

    python_types = (dict,)
    exact_operators = True
    #: For iterators, which notice another size, as a dict's do.
    version = 0
    __slots__ = ("tracer",)

    def __init__(self, tr: Tracer, source: Source | None) -> None:
        super().__init__(source=source)
        self.tracer = tr

    def own(self, tr: Tracer, name: str) -> Value | None:
        """The entry of a name now, or None; guarded either way."""
        raise NotImplementedError

    def store(self, tr: Tracer, name: str, value: Value) -> None:
        """Store an entry."""
        raise NotImplementedError

    def delete(self, tr: Tracer, name: str) -> None:
        """Delete an entry, which is there."""
        raise NotImplementedError

    def existing(self) -> tuple[str, ...]:
        """The names there were before the trace."""
        raise NotImplementedError

    def present(self) -> list[str]:
        """All names in order, pending stores included."""
        raise NotImplementedError

    def names(self, tr: Tracer) -> list[str]:
        """All names in order; that there were these before the trace is guarded."""
        if self.source is not None:
            tr.guard(self.source, "DICT_KEYS", self.existing())
        return self.present()

    @property
    def changed(self) -> bool:
        """Whether the trace has added or removed names."""
        return self.present() != list(self.existing())

    def size_now(self) -> int:
        """The present number of names, for iterators."""
        return len(self.present())

    def name_of(self, key: Value) -> str:
        """The attribute a key names."""
        name = key.as_constant()
        if type(name) is not str:
            raise GraphBreak(INSTANCE_DICT, f"the key {name!r} of {self.describe()}")
        return name

    def python_type(self) -> type:
        return dict

    # What views ask for

    def keys_now(self, tr: Tracer) -> list[Value]:
        """All keys in order."""
        return [tr.constant(name) for name in self.names(tr)]

    def values_now(self, tr: Tracer) -> list[Value]:
        """All values in order."""
        return [self.getitem(tr, key) for key in self.keys_now(tr)]

    def lookup(self, tr: Tracer, key: Value) -> Value | None:
        """The value of a key, or None."""
        return self.own(tr, self.name_of(key))

    def snapshot(self, tr: Tracer) -> DictValue:
        """A plain dict value with the present contents."""
        return new_dict(tr, [(key, self.getitem(tr, key)) for key in self.keys_now(tr)])

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(self.python_type())
        if not hasattr(self.python_type(), name):
            tr.raise_(AttributeError, f"'{self.python_type().__name__}' object has no attribute '{name}'")
        return BuiltinMethodValue(self, name)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        value = self.own(tr, self.name_of(key))
        if value is None:
            tr.raise_(KeyError, key)
        return value

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        self.store(tr, self.name_of(key), value)

    def delitem(self, tr: Tracer, key: Value) -> None:
        self.getitem(tr, key)
        self.delete(tr, self.name_of(key))

    def contains(self, tr: Tracer, item: Value) -> Value:
        return tr.constant(self.own(tr, self.name_of(item)) is not None)

    def len_(self, tr: Tracer) -> Value:
        return tr.constant(len(self.names(tr)))

    def bool_(self, tr: Tracer) -> bool:
        return bool(self.names(tr))

    def iter_(self, tr: Tracer) -> Value:
        return self.snapshot(tr).iter_(tr)

    def unpack(self, tr: Tracer) -> list[Value]:
        return self.keys_now(tr)

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in ("==", "!=") or not isinstance(other, AttributeDictValue | DictValue):
            return None
        if other is self:
            return tr.constant(op == "==")
        return self.snapshot(tr).compare(tr, op, other.snapshot(tr) if isinstance(other, AttributeDictValue) else other)

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self.snapshot(tr).binary_op(tr, op, other)

    def hash_key(self, tr: Tracer) -> object:
        tr.raise_(TypeError, f"unhashable type: '{self.python_type().__name__}'")

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        method = METHODS.get(name)
        if method is not None:
            return method(self, tr, args, kwargs)
        if name in ("keys", "values", "items") and not args and not kwargs:
            return DictView(name, self) if name == "values" else KeysView(name, self)
        if name in READERS:
            return self.snapshot(tr).call_method(tr, name, args, kwargs)
        if not hasattr(self.python_type(), name):
            self.getattr_(tr, name)
        raise GraphBreak(INSTANCE_DICT, f"{name}() of {self.describe()}")


def _get(self: AttributeDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = self.own(tr, self.name_of(args[0]))
    if value is not None:
        return value
    return args[1] if len(args) > 1 else tr.constant(None)


def _update(self: AttributeDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    for other in args:
        for key in other.unpack(tr):
            self.setitem(tr, key, other.getitem(tr, key))
    for name, value in kwargs.items():
        self.setitem(tr, tr.constant(name), value)
    return tr.constant(None)


def _pop(self: AttributeDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = self.own(tr, self.name_of(args[0]))
    if value is None:
        if len(args) > 1:
            return args[1]
        tr.raise_(KeyError, args[0])
    self.delitem(tr, args[0])
    return value


def _setdefault(self: AttributeDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = self.own(tr, self.name_of(args[0]))
    if value is None:
        value = args[1] if len(args) > 1 else tr.constant(None)
        self.setitem(tr, args[0], value)
    return value


def _setitem(self: AttributeDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    self.setitem(tr, *args)
    return tr.constant(None)


def _delitem(self: AttributeDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    self.delitem(tr, *args)
    return tr.constant(None)


METHODS: Final[dict[str, Callable[[Any, Tracer, Args, Kwargs], Value]]] = {
    "get": _get,
    "update": _update,
    "pop": _pop,
    "setdefault": _setdefault,
    "__getitem__": lambda self, tr, args, kwargs: self.getitem(tr, args[0]),
    "__contains__": lambda self, tr, args, kwargs: self.contains(tr, args[0]),
    "__setitem__": _setitem,
    "__delitem__": _delitem,
}
#: Methods that a plain copy of the present contents answers as well.
READERS: Final = frozenset({"copy", "__iter__", "__len__", "__or__", "__reversed__"})


class ModuleDictValue(AttributeDictValue):
    """A module's dictionary: `globals()`, `vars(module)`. `entries` is the real one."""

    __slots__ = ("entries",)

    def __init__(self, tr: Tracer, entries: namespaces.Entries) -> None:
        super().__init__(tr, namespaces.namespace_source(tr, entries))
        self.entries = entries

    def describe(self) -> str:
        return f"the globals of {self.entries.get('__name__')}"

    def own(self, tr: Tracer, name: str) -> Value | None:
        value = namespaces.load(tr, self.entries, name)
        if value is None:
            namespaces.rely_on_absence(tr, self.entries, name)
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

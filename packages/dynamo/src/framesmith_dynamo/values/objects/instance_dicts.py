"""`obj.__dict__` of an object value: a view that reads and stores the object's own attributes."""

from __future__ import annotations

from collections.abc import Callable
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.containers import new_dict
from framesmith_dynamo.values.lookup import type_lookup
from framesmith_guards import InstanceDictSource
from framesmith_sideeffects import DELETED

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

INSTANCE_DICT = register_break(
    "instance-dict",
    what="an object's __dict__ is used in a way that cannot be followed",
    why="the tracer keeps attributes in its journal, not in a dictionary",
    hint="use getattr and setattr",
)


class InstanceDictValue(Value):
    """The dictionary of an object's own attributes. `owner` is an object value: it has `own_attribute`,
    `store_own`, `entries`.
    """

    python_types = (dict,)
    __slots__ = ("owner",)

    def __init__(self, owner: Any) -> None:
        super().__init__(source=InstanceDictSource(owner.source) if owner.source is not None else None)
        self.owner = owner

    def python_type(self) -> type:
        return dict

    def names(self, tr: Tracer) -> list[str]:
        """The attributes' names in order, pending stores included; the existing ones are guarded."""
        existing = self.owner.entries() or {}
        if self.owner.exists and self.source is not None:
            tr.guard(self.source, "DICT_KEYS", tuple(existing))
        pending = tr.journal.pending_attrs(self.owner) if self.owner.mutation is not None else {}
        moved = {name for name in pending if tr.journal.was_deleted(self.owner, name)}
        names = [name for name in existing if name not in moved]
        added = [name for name, value in pending.items() if value is not DELETED]
        return names + [name for name in added if (name not in existing or name in moved) and not self._is_slot(name)]

    def _is_slot(self, name: str) -> bool:
        found = type_lookup(self.owner.cls, name)
        return found is not None and isinstance(found.raw, MemberDescriptorType)

    def _name(self, key: Value) -> str:
        """The attribute a key names. A slot's is refused: its value is not in the dictionary."""
        name: str = key.as_constant()
        if self._is_slot(name):
            raise GraphBreak(INSTANCE_DICT, f"the slot {name!r} of {self.owner.describe()}")
        return name

    def snapshot(self, tr: Tracer) -> Value:
        """A plain dict value with the present contents."""
        return new_dict(tr, [(tr.constant(name), self._get(tr, name)) for name in self.names(tr)])

    def _get(self, tr: Tracer, name: str) -> Value:
        value: Value = self.owner.own_attribute(tr, name)
        return value

    def getattr_(self, tr: Tracer, name: str) -> Value:
        return BuiltinMethodValue(self, name)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        value: Value | None = self.owner.own_attribute(tr, self._name(key))
        if value is None:
            tr.raise_(KeyError, key.as_constant())
        return value

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        self.owner.store_own(tr, self._name(key), value)

    def delitem(self, tr: Tracer, key: Value) -> None:
        self.getitem(tr, key)
        self.owner.delete_own(tr, self._name(key))

    def contains(self, tr: Tracer, item: Value) -> Value:
        return tr.constant(self.owner.own_attribute(tr, self._name(item)) is not None)

    def len_(self, tr: Tracer) -> Value:
        return tr.constant(len(self.names(tr)))

    def bool_(self, tr: Tracer) -> bool:
        return bool(self.names(tr))

    def iter_(self, tr: Tracer) -> Value:
        return self.snapshot(tr).iter_(tr)

    def unpack(self, tr: Tracer) -> list[Value]:
        return [tr.constant(name) for name in self.names(tr)]

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        method = METHODS.get(name)
        if method is not None:
            return method(self, tr, args, kwargs)
        if name in ("items", "keys", "values", "copy", "__iter__", "__len__", "__or__"):
            return self.snapshot(tr).call_method(tr, name, args, kwargs)
        raise GraphBreak(INSTANCE_DICT, f"{name}() of the __dict__ of {self.owner.describe()}")

    def referents(self) -> tuple[Value, ...]:
        return (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen(self.owner)
        codegen.load_attr("__dict__")


def _get(self: InstanceDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value: Value | None = self.owner.own_attribute(tr, self._name(args[0]))
    if value is not None:
        return value
    return args[1] if len(args) > 1 else tr.constant(None)


def _update(self: InstanceDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    for other in args:
        for key in other.unpack(tr):
            self.setitem(tr, key, other.getitem(tr, key))
    for name, value in kwargs.items():
        self.setitem(tr, tr.constant(name), value)
    return tr.constant(None)


def _pop(self: InstanceDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value: Value | None = self.owner.own_attribute(tr, self._name(args[0]))
    if value is None:
        if len(args) > 1:
            return args[1]
        tr.raise_(KeyError, args[0].as_constant())
    self.delitem(tr, args[0])
    return value


def _setdefault(self: InstanceDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value: Value | None = self.owner.own_attribute(tr, self._name(args[0]))
    if value is None:
        value = args[1] if len(args) > 1 else tr.constant(None)
        self.setitem(tr, args[0], value)
    return value


def _setitem(self: InstanceDictValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    self.setitem(tr, *args)
    return tr.constant(None)


METHODS: dict[str, Callable[[InstanceDictValue, Tracer, Args, Kwargs], Value]] = {
    "get": _get,
    "update": _update,
    "pop": _pop,
    "setdefault": _setdefault,
    "__getitem__": lambda self, tr, args, kwargs: self.getitem(tr, args[0]),
    "__contains__": lambda self, tr, args, kwargs: self.contains(tr, args[0]),
    "__setitem__": _setitem,
}

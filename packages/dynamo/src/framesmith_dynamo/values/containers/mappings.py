"""Common base of dicts and `__dict__`s: look-ups, pairs, methods by name; and views, which read the dict each time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.containers.base import ContainerValue
from framesmith_dynamo.values.containers.mutable_sets import SetValue, new_set
from framesmith_dynamo.values.containers.sets import OPERATORS, SetLike
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.errors import refuse_positional
from framesmith_dynamo.values.iteration.consuming import each
from framesmith_dynamo.values.iteration.iterators import ConsumingIterator, Reader, tracked
from framesmith_dynamo.values.lookup.static import type_lookup

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class MappingValue(ContainerValue):
    """A dict, or a `__dict__`: keys known on demand, each with its value."""

    __slots__ = ()

    def keys_now(self, tr: Tracer) -> list[Value]:
        """All keys in order."""
        raise NotImplementedError

    def values_now(self, tr: Tracer) -> list[Value]:
        """All values in order."""
        raise NotImplementedError

    def lookup(self, tr: Tracer, key: Value) -> Value | None:
        """The value of a key, or None; guarded either way."""
        raise NotImplementedError

    def pairs_now(self, tr: Tracer) -> list[tuple[Value, Value]]:
        """All items in order."""
        return list(zip(self.keys_now(tr), self.values_now(tr), strict=True))

    def contents_type(self) -> type:
        """The builtin type whose errors a call raises."""
        return dict

    def unpack(self, tr: Tracer) -> list[Value]:
        return self.keys_now(tr)

    # Methods

    def m_get(self, tr: Tracer, key: Value, default: Value | None = None, /) -> Value:
        value = self.lookup(tr, key)
        if value is not None:
            return value
        return tr.constant(None) if default is None else default

    def m_setdefault(self, tr: Tracer, key: Value, default: Value | None = None, /) -> Value:
        value = self.lookup(tr, key)
        if value is None:
            value = tr.constant(None) if default is None else default
            self.setitem(tr, key, value)
        return value

    def m_update(self, tr: Tracer, other: Value | None = None, /, **kwargs: Value) -> None:
        if other is not None:
            self.merge(tr, pairs_of(tr, other, self.contents_type()))
        self.merge(tr, [(tr.constant(name), value) for name, value in kwargs.items()])

    def merge(self, tr: Tracer, pairs: Iterable[tuple[Value, Value]]) -> None:
        for key, value in pairs:
            self.setitem(tr, key, value)

    def m_keys(self, tr: Tracer) -> Value:
        return KeysView("keys", self)

    def m_values(self, tr: Tracer) -> Value:
        return DictView("values", self)

    def m_items(self, tr: Tracer) -> Value:
        return KeysView("items", self)


def pairs_of(tr: Tracer, other: Value, cls: type = dict) -> Iterator[tuple[Value, Value]]:
    """Return key-value pairs from a mapping (anything with `keys`) or an iterable of pairs, one by one, for a `cls`.

    A dict reads another one's items past its own methods, unless `__iter__` is overridden; an OrderedDict does not.
    """
    found = type_lookup(other.python_type(), "__iter__")
    if isinstance(other, MappingValue):
        yield from other.pairs_now(tr)
    elif cls is not OrderedDict and found is not None and found.raw is dict.__iter__:
        for pair in tr.call(tr.constant(dict.items), (other,), {}).unpack(tr):
            key, value = pair.unpack(tr)
            yield key, value
    elif type_lookup(other.python_type(), "keys") is not None:
        keys = other.call_method(tr, "keys", (), {})
        for key in each(tr, keys) if cls is OrderedDict else keys.unpack(tr):
            yield key, other.getitem(tr, key)
    else:
        for position, item in enumerate(each(tr, other)):
            yield _pair(tr, cls, position, item)


def _pair(tr: Tracer, cls: type, position: int, item: Value) -> tuple[Value, Value]:
    own = item.python_type()
    parts = None
    if type_lookup(own, "__iter__") is not None or type_lookup(own, "__getitem__") is not None:
        parts = item.unpack(tr)
    if parts is None or len(parts) != 2:
        before = [(key, None) for key in range(position)]
        refuse_positional(tr, lambda obj: cls([*before, obj if parts is None else range(len(parts))]), item)
    return parts[0], parts[1]


def is_unhashable(key: Value) -> bool:
    found = type_lookup(key.python_type(), "__hash__")
    return found is not None and found.raw is None


class DictView(ContainerValue):
    """`d.values()`, and the base of the other two; `kind` is the method's name."""

    __slots__ = ("kind", "owner")

    def __init__(self, kind: str, owner: MappingValue) -> None:
        super().__init__()
        self.kind = kind
        self.owner = owner

    def python_type(self) -> type:
        return type(getattr(self.owner.python_type()(), self.kind)())

    def unpack(self, tr: Tracer) -> list[Value]:
        if self.kind == "keys":
            return self.owner.keys_now(tr)
        if self.kind == "values":
            return self.owner.values_now(tr)
        return [TupleValue(pair) for pair in self.owner.pairs_now(tr)]

    def len_(self, tr: Tracer) -> Value:
        return self.owner.len_(tr)

    def iter_(self, tr: Tracer) -> Value:
        cls = type(iter(getattr(self.owner.python_type()(), self.kind)()))
        return tracked(tr, ConsumingIterator(cls, self.owner.keys_now(tr), self.owner, shown=self, read=self._reader()))

    def _reader(self) -> Reader | None:
        return {"values": self._value, "items": self._pair}.get(self.kind)

    def _value(self, tr: Tracer, key: Value) -> Value:
        value = self.owner.lookup(tr, key)
        assert value is not None, "a key was removed without a change of length"
        return value

    def _pair(self, tr: Tracer, key: Value) -> Value:
        return TupleValue([key, self._value(tr, key)])

    def m___reversed__(self, tr: Tracer) -> Value:
        cls = type(reversed(getattr(self.owner.python_type()(), self.kind)()))
        keys = self.owner.keys_now(tr)[::-1]
        return tracked(tr, ConsumingIterator(cls, keys, self.owner, shown=self, read=self._reader(), backwards=True))

    def contains(self, tr: Tracer, item: Value) -> Value:
        return tr.constant(any(operations.equal(tr, own, item) for own in self.unpack(tr)))

    def hash_key(self, tr: Tracer) -> object:
        return self if self.kind == "values" else super().hash_key(tr)

    def referents(self) -> Iterable[Value]:
        return (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen(self.owner)
        codegen.load_method(self.kind)
        codegen.call_method(0)


class KeysView(DictView, SetLike):
    """`d.keys()` and `d.items()`, which are sets too."""

    __slots__ = ()

    def contains(self, tr: Tracer, item: Value) -> Value:
        if self.kind == "keys":
            return self.owner.contains(tr, item)
        if not isinstance(item, TupleValue) or len(item.items) != 2:
            return tr.constant(False)
        value = self.owner.lookup(tr, item.at(0))
        return tr.constant(value is not None and operations.equal(tr, value, item.at(1)))

    def holds(self, tr: Tracer, item: Value) -> bool:
        return self.contains(tr, item).bool_(tr)

    def hash_key(self, tr: Tracer) -> object:
        return super(DictView, self).hash_key(tr)

    def members_now(self, tr: Tracer) -> dict[object, Value]:
        return {operations.hash_key(tr, member, set): member for member in self.unpack(tr)}

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self._common(tr, other) if op == "&" else _changed_set(tr, op, self, other)

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self._common(tr, other) if op == "&" else _changed_set(tr, op, other, self)

    def _common(self, tr: Tracer, other: Value) -> Value:
        """`self & other` with the view on either side: a plain set no larger than the view is probed."""
        if type(other) is SetValue and len(self.members_now(tr)) <= other.size_now():
            return other.call_method(tr, "intersection", (self,), {})
        return new_set(tr, (item for item in each(tr, other) if self.holds(tr, item)))


def _changed_set(tr: Tracer, op: str, left: Value, right: Value) -> Value | None:
    """`left <op> right` where one is a view of keys: a set of the left operand's members, changed by the right."""
    if op not in OPERATORS:
        return None
    made = new_set(tr, each(tr, left))
    made.call_method(tr, "update" if op == "|" else f"{OPERATORS[op]}_update", (right,), {})
    return made

"""Views of dicts: they read the dict each time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, cast

from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.containers.base import ContainerValue
from framesmith_dynamo.values.containers.sets import SetLike, new_set
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.iteration.iterators import ConsumingIterator, Reader, tracked

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class Viewed(Protocol):
    """What a dict value offers its views."""

    def keys_now(self, tr: Tracer) -> list[Value]:
        """All keys in order."""

    def values_now(self, tr: Tracer) -> list[Value]:
        """All values in order."""

    def lookup(self, tr: Tracer, key: Value) -> Value | None:
        """The value of a key, or None."""


class DictView(ContainerValue):
    """`d.values()`, and the base of the other two; `kind` is the method's name."""

    __slots__ = ("kind", "owner")

    def __init__(self, kind: str, owner: Value) -> None:
        super().__init__()
        self.kind = kind
        self.owner = owner

    @property
    def viewed(self) -> Viewed:
        """The owner as a view sees it."""
        return cast(Viewed, self.owner)

    def python_type(self) -> type:
        return type(getattr(self.owner.python_type()(), self.kind)())

    def unpack(self, tr: Tracer) -> list[Value]:
        if self.kind == "keys":
            return self.viewed.keys_now(tr)
        if self.kind == "values":
            return self.viewed.values_now(tr)
        return [TupleValue(pair) for pair in zip(self.viewed.keys_now(tr), self.viewed.values_now(tr), strict=True)]

    def len_(self, tr: Tracer) -> Value:
        return self.owner.len_(tr)

    def iter_(self, tr: Tracer) -> Value:
        cls = type(iter(getattr(self.owner.python_type()(), self.kind)()))
        return tracked(
            tr, ConsumingIterator(cls, self.viewed.keys_now(tr), self.owner, shown=self, read=self._reader())
        )

    def _reader(self) -> Reader | None:
        return {"values": self._value, "items": self._pair}.get(self.kind)

    def _value(self, tr: Tracer, key: Value) -> Value:
        value = self.viewed.lookup(tr, key)
        assert value is not None, "a key went away without the length changing"
        return value

    def _pair(self, tr: Tracer, key: Value) -> Value:
        return TupleValue([key, self._value(tr, key)])

    def m___reversed__(self, tr: Tracer) -> Value:
        """`reversed(self)`."""
        cls = type(reversed(getattr(self.owner.python_type()(), self.kind)()))
        keys = self.viewed.keys_now(tr)[::-1]
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
        value = self.viewed.lookup(tr, item.at(0))
        return tr.constant(value is not None and operations.equal(tr, value, item.at(1)))

    def hash_key(self, tr: Tracer) -> object:
        return super(DictView, self).hash_key(tr)

    def members_now(self, tr: Tracer) -> dict[object, Value]:
        return {operations.hash_key(tr, member): member for member in self.unpack(tr)}

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return new_set(tr, self.unpack(tr)).combined(tr, op, other, strict=False)

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return None if op not in "&|^-" else new_set(tr, other.unpack(tr)).combined(tr, op, self, strict=False)

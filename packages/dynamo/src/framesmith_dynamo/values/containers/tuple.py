"""Tuples, and torch's subclass of tuple: `torch.Size`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import plain
from framesmith_dynamo.values.containers.items import LazyItem
from framesmith_dynamo.values.containers.sequence import SequenceValue, is_count
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class TupleValue(SequenceValue):
    """A tuple: constant when all its items are."""

    python_types: ClassVar[tuple[type, ...]] = (tuple,)
    family = "tuple"
    __slots__ = ()

    def of_same_kind(self, tr: Tracer, items: Sequence[Value]) -> Value:
        return TupleValue(items)

    def is_constant(self) -> bool:
        return all(item.is_constant() for item in self.items)

    def can_be_constant(self) -> bool:
        return all(item.can_be_constant() for item in self.items)

    def as_constant(self) -> Any:
        return tuple(self.at(index).as_constant() for index in range(len(self.items)))

    def as_plain(self) -> Any:
        return tuple(plain(self.at(index)) for index in range(len(self.items)))

    def as_proxy(self) -> Any:
        return tuple(self.at(index).as_proxy() for index in range(len(self.items)))

    def hash_key(self, tr: Tracer) -> object:
        return tuple(operations.hash_key(tr, item) for item in self.unpack(tr))

    def getitem(self, tr: Tracer, key: Value) -> Value:
        where = key.real_slice(tr) if type(self) is TupleValue else None
        if where is not None and range(len(self.items))[where] == range(len(self.items)):
            return self  # a full slice of a tuple is the tuple itself
        return super().getitem(tr, key)

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        empty = next((value for value in (self, other) if type(value) is TupleValue and not value.items), None)
        if op == "+" and empty is not None and type(self) is type(other) is TupleValue:
            return other if empty is self else self  # CPython returns the tuple itself if no items are added
        return self if self._is_repeated_once(op, other) else super().binary_op(tr, op, other)

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self if self._is_repeated_once(op, other) else super().reflected_op(tr, op, other)

    def _is_repeated_once(self, op: str, other: Value) -> bool:
        return (
            op == "*"
            and type(self) is TupleValue
            and other.can_be_constant()
            and is_count(other)
            and other.as_constant() == 1
        )

    def m___getnewargs__(self, tr: Tracer) -> Value:
        """Called by `copy`."""
        return TupleValue([TupleValue(self.items)])

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        self.push_items(codegen)

    def push_items(self, codegen: Codegen) -> None:
        """Push a plain tuple of the items."""
        for item in self.items:
            codegen(item)
        codegen.build("tuple", len(self.items))


class SizeValue(TupleValue):
    """A `torch.Size`: a tuple of ints with `numel`."""

    python_types = (torch.Size,)
    __slots__ = ()

    def of_same_kind(self, tr: Tracer, items: Sequence[Value]) -> Value:
        if all(issubclass(item.python_type(), int) for item in items):
            return SizeValue(items)
        return TupleValue(items)

    def can_be_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return torch.Size(super().as_constant())

    def as_plain(self) -> Any:
        return self.as_constant()

    def as_proxy(self) -> Any:
        return torch.Size(super().as_proxy()) if not self.is_symbolic() else super().as_proxy()

    def is_symbolic(self) -> bool:
        return any(item.is_symbolic() for item in self.items)

    def m_numel(self, tr: Tracer) -> Value:
        total = tr.constant(1)
        for item in self.unpack(tr):
            total = operations.binary(tr, "*", total, item)
        return total

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        codegen.push_function(torch.Size)
        self.push_items(codegen)
        codegen.call(1)


@builds_type(tuple)
def _build_tuple(tr: Tracer, obj: tuple[Any, ...]) -> Value:
    return TupleValue([build(tr, item) for item in obj])


@builds_type(torch.Size)
def _build_size(tr: Tracer, obj: torch.Size) -> Value:
    return SizeValue([tr.constant(item) for item in obj])


@wraps_type(tuple)
def wrap_tuple(tr: Tracer, obj: tuple[Any, ...], source: Source) -> Value:
    """Wrap a tuple found at a source: type and length are guarded, items when they are read."""
    tr.guard(source, "TYPE_MATCH", tuple)
    tr.guard(source, "LENGTH", len(obj))
    value = TupleValue(lazy_items(tr, obj, source), source=source)
    value.real = obj
    return value


@wraps_type(torch.Size)
def wrap_size(tr: Tracer, obj: torch.Size, source: Source) -> Value:
    """Wrap a `torch.Size` found at a source, guarded by value."""
    tr.guard(source, "EQUALS_MATCH", obj)
    return SizeValue([tr.constant(int(item)) for item in obj], source=source)


def lazy_items(tr: Tracer, obj: Sequence[Any], source: Source) -> list[Value]:
    """Return the lazy items of an existing sequence."""
    return [LazyItem(tr, item, source, index) for index, item in enumerate(obj)]

"""Common base of lists, tuples and deques: indexing, slicing, searching, comparison."""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import NOT_CONSTANT, GraphBreak
from framesmith_dynamo.python_behaviour import INDEX_NAMES_ITEM
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import MAX_FOLDED, plain
from framesmith_dynamo.values.containers.base import ContainerValue, MutableContainer
from framesmith_dynamo.values.containers.items import LazyItem, resolved
from framesmith_dynamo.values.errors import answered, refuse_positional
from framesmith_dynamo.values.iteration.consuming import each
from framesmith_dynamo.values.iteration.iterators import SequenceIterator, tracked
from framesmith_dynamo.values.lookup.entries import entry_value
from framesmith_dynamo.values.lookup.static import type_lookup

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class SequenceValue(ContainerValue):
    """Items in order; `items` may hold `LazyItem`s, read through `at` and `unpack`."""

    __slots__ = ("items",)
    #: "list" or "tuple": the name in messages, and the type of operands that it may be compared and added to.
    family: str

    def __init__(self, items: Iterable[Value], *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.items: list[Value] = list(items)

    def of_same_kind(self, tr: Tracer, items: Sequence[Value]) -> Value:
        """Return a new plain sequence of this family."""
        raise NotImplementedError

    def at(self, index: int) -> Value:
        """Return the item at a real index."""
        item = self.items[index]
        if isinstance(item, LazyItem):
            item = self.items[index] = resolved(item)
        return item

    def referents(self) -> Iterable[Value]:
        return self.items

    def unpack(self, tr: Tracer) -> list[Value]:
        return [self.at(index) for index in range(len(self.items))]

    def len_(self, tr: Tracer) -> Value:
        return tr.constant(len(self.items))

    def iter_(self, tr: Tracer) -> Value:
        return tracked(tr, SequenceIterator(self))

    def m___reversed__(self, tr: Tracer) -> Value:
        return tracked(tr, SequenceIterator(self, len(self.items) - 1, -1))

    def size_now(self) -> int:
        return len(self.items)

    def item_now(self, tr: Tracer, index: int) -> Value:
        return self.at(index)

    def as_plain(self) -> Any:
        return [plain(self.at(index)) for index in range(len(self.items))]

    def as_proxy(self) -> Any:
        return [self.at(index).as_proxy() for index in range(len(self.items))]

    # Items

    def getitem(self, tr: Tracer, key: Value) -> Value:
        where = subscript(tr, self, key)
        if isinstance(where, slice):
            return self.of_same_kind(tr, [self.at(index) for index in range(len(self.items))[where]])
        return self.at(self.checked(tr, where, "index out of range"))

    def checked(self, tr: Tracer, index: int, message: str) -> int:
        """Return a real index within bounds; the program's IndexError otherwise."""
        if not -len(self.items) <= index < len(self.items):
            tr.raise_(IndexError, f"{self.family} {message}")
        return index % len(self.items)

    def contains(self, tr: Tracer, item: Value) -> Value:
        return tr.constant(any(operations.equal(tr, own, item) for own in self.unpack(tr)))

    def m_index(self, tr: Tracer, value: Value, start: Value | None = None, stop: Value | None = None, /) -> Value:
        first = 0 if start is None else bound_of(tr, start)
        last = len(self.items) if stop is None else bound_of(tr, stop)
        found = self._position(tr, value, range(len(self.items))[first:last])
        if found is None:
            named = INDEX_NAMES_ITEM and self.family != "tuple"
            fixed = f"{self.family}.index(x): x not in {self.family}"
            tr.raise_(ValueError, f"{plain(value)!r} is not in {self.family}" if named else fixed)
        return tr.constant(found)

    def _position(self, tr: Tracer, value: Value, indices: range) -> int | None:
        return next((index for index in indices if operations.equal(tr, self.at(index), value)), None)

    def m_count(self, tr: Tracer, value: Value, /) -> Value:
        return tr.constant(sum(operations.equal(tr, own, value) for own in self.unpack(tr)))

    # Operators

    def is_family(self, other: Value) -> bool:
        """Whether the other is a sequence of the same family."""
        return isinstance(other, SequenceValue) and other.family == self.family

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        other = other.builtin_contents()
        if not isinstance(other, SequenceValue) or not self.is_family(other):
            return None
        left, right = self.unpack(tr), other.unpack(tr)
        if len(left) != len(right) and op in ("==", "!="):
            return tr.constant(op == "!=")
        for a, b in zip(left, right, strict=False):
            if not operations.equal(tr, a, b):
                return tr.constant(op == "!=") if op in ("==", "!=") else operations.compare(tr, op, a, b)
        return operations.compare(tr, op, tr.constant(len(left)), tr.constant(len(right)))

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        other = other.builtin_contents()
        if op == "+" and isinstance(other, SequenceValue) and self.is_family(other):
            return self.of_same_kind(tr, [*self.unpack(tr), *other.unpack(tr)])
        if op == "*" and is_count(other):
            return self.of_same_kind(tr, self.repeated(tr, other))
        return None

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op == "*" and is_count(other):
            return self.of_same_kind(tr, self.repeated(tr, other))
        return None

    def repeated(self, tr: Tracer, count: Value) -> list[Value]:
        """Return the items of `self * count`."""
        times = index_of(tr, count)
        if len(self.items) * times > MAX_FOLDED:
            raise GraphBreak(NOT_CONSTANT, f"a {self.family} of more than {MAX_FOLDED} items")
        return [item for _ in range(times) for item in self.unpack(tr)]


class MutableSequence(SequenceValue, MutableContainer):
    """Common base of lists and deques."""

    __slots__ = ()

    def replace(self, tr: Tracer, items: list[Value]) -> None:
        """Replace all items."""
        self.changes(tr)
        self.items = items

    def add_all(self, tr: Tracer, new: list[Value]) -> None:
        """Append all of them."""
        raise NotImplementedError

    def inplace_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op == "+":
            self.m_extend(tr, other)
        elif op == "*" and is_count(other):
            self.replace(tr, self.repeated(tr, other))
        else:
            return None
        return self

    def m_append(self, tr: Tracer, item: Value, /) -> None:
        self.add_all(tr, [item])

    def m_extend(self, tr: Tracer, items: Value, /) -> None:
        """`extend(items)`; items taken before the iterator raises are added, as in Python."""
        if isinstance(items, SequenceValue) or items.builtin_contents() is self:  # of itself it takes a copy
            self.add_all(tr, items.unpack(tr))
            return
        for item in each(tr, items):
            self.add_all(tr, [item])

    def m_remove(self, tr: Tracer, value: Value, /) -> None:
        index = self._position(tr, value, range(len(self.items)))
        if index is None:
            if self.family == "deque" and value.can_be_constant():  # whose message differs, as of Python 3.11
                refuse_positional(tr, deque.remove, self, value)
            tr.raise_(ValueError, f"{self.family}.remove(x): x not in {self.family}")
        self.changes(tr)
        del self.items[index]

    def m_clear(self, tr: Tracer) -> None:
        self.changes(tr)
        self.items.clear()

    def m_reverse(self, tr: Tracer) -> None:
        self.changes(tr)
        self.items.reverse()

    def m_copy(self, tr: Tracer) -> Value:
        return self.of_same_kind(tr, self.unpack(tr))

    def reconstruct_contents(self, codegen: Codegen) -> None:
        for item in self.items:
            codegen(item)
        codegen.build("list", len(self.items))


def is_count(value: Value) -> bool:
    """Whether a value is a valid repeat count of a sequence."""
    cls = value.python_type()
    own = type_lookup(cls, "__index__")
    return (value.can_be_constant() and issubclass(cls, int)) or (own is not None and isinstance(own.raw, FunctionType))


def index_of(tr: Tracer, value: Value) -> int:
    """Return a real index, as `operator.index` does; the program's TypeError otherwise."""
    found = type_lookup(value.python_type(), "__index__")
    if found is None:
        refuse_positional(tr, operator.index, value)
    if isinstance(found.raw, FunctionType):
        answer = tr.call(entry_value(tr, value.python_type(), found, "__index__", value.source), (value,), {})
        return index_of(tr, answered(tr, operator.index, "__index__", value, answer))
    if not value.can_be_constant():
        answer = value.call_method(tr, "__index__", (), {})  # of a tensor whose item the trace knows
        if not answer.can_be_constant():
            raise GraphBreak(NOT_CONSTANT, f"{value.describe()} as an index")
        return index_of(tr, answer)
    return operator.index(value.as_constant())


def bound_of(tr: Tracer, value: Value) -> int:
    """As `index_of`, with the messages of slices."""
    if type_lookup(value.python_type(), "__index__") is None:
        refuse_positional(tr, [].index, value, value)
    return index_of(tr, value)


def any_subscript(tr: Tracer, owner: Value, key: Value) -> int | slice:
    """Return a real slice, or an index of any size, as a range supports."""
    where = key.real_slice(tr)
    if where is not None:
        return where
    if type_lookup(key.python_type(), "__index__") is None:
        refuse_positional(tr, operator.getitem, owner, key)
    return index_of(tr, key)


def subscript(tr: Tracer, owner: Value, key: Value) -> int | slice:
    """Return a real slice, or an index-sized integer."""
    index = any_subscript(tr, owner, key)
    if isinstance(index, slice):
        return index
    if abs(index) > sys.maxsize and not issubclass(key.python_type(), int):
        tr.raise_(IndexError, f"cannot fit '{key.python_type().__name__}' into an index-sized integer")
    if abs(index) > sys.maxsize:
        refuse_positional(tr, operator.getitem, owner, key)
    return index

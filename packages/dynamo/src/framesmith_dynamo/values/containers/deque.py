"""Deques."""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.containers.items import LazyItem
from framesmith_dynamo.values.containers.sequence import MutableSequence, index_of
from framesmith_dynamo.values.errors import refuse_positional
from framesmith_dynamo.values.iteration.consuming import each
from framesmith_dynamo.values.iteration.iterators import ConsumingIterator, tracked
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class DequeValue(MutableSequence):
    """A deque, bounded or not. Create new ones with `new_deque`."""

    python_types = (deque,)
    family = "deque"
    __slots__ = ("maxlen",)

    def __init__(self, items: Iterable[Value], maxlen: int | None = None, *, source: Source | None = None) -> None:
        super().__init__(items, source=source)
        self.maxlen = maxlen

    def changes(self, tr: Tracer) -> None:
        super().changes(tr)
        self.version += 1

    def of_same_kind(self, tr: Tracer, items: Sequence[Value]) -> Value:
        return new_deque(tr, items, self.maxlen)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "maxlen":
            return tr.constant(self.maxlen)
        return super().getattr_(tr, name)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        self._check_index(tr, key)
        return super().getitem(tr, key)

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        self._check_index(tr, key)
        where = self.checked(tr, index_of(tr, key), "index out of range")
        self.changes(tr)
        self.version -= 1  # replacing an item does not invalidate iterators
        self.items[where] = value

    def delitem(self, tr: Tracer, key: Value) -> None:
        self._check_index(tr, key)
        where = self.checked(tr, index_of(tr, key), "index out of range")
        self.changes(tr)
        del self.items[where]

    def _check_index(self, tr: Tracer, key: Value) -> None:
        if type_lookup(key.python_type(), "__index__") is None:
            refuse_positional(tr, operator.delitem, self, key)

    def m___getitem__(self, tr: Tracer, key: Value, /) -> Value:
        """`__getitem__(key)`, whose errors differ from those of brackets."""
        return self.getitem(tr, self._index(tr, deque.__getitem__, key))

    def m___setitem__(self, tr: Tracer, key: Value, value: Value, /) -> None:
        self.setitem(tr, self._index(tr, deque.__setitem__, key, value), value)

    def m___delitem__(self, tr: Tracer, key: Value, /) -> None:
        self.delitem(tr, self._index(tr, deque.__delitem__, key))

    def _index(self, tr: Tracer, method: Callable[..., Any], key: Value, *rest: Value) -> Value:
        too_large = key.is_constant() and key.python_type() is int and abs(key.as_constant()) > sys.maxsize
        if too_large or type_lookup(key.python_type(), "__index__") is None:
            refuse_positional(tr, method, self, key, *rest)
        return key

    def iter_(self, tr: Tracer) -> Value:
        return tracked(tr, ConsumingIterator(type(iter(deque())), self.unpack(tr), self))

    def m___reversed__(self, tr: Tracer) -> Value:
        cls: type = type(reversed(deque()))
        return tracked(tr, ConsumingIterator(cls, self.unpack(tr)[::-1], self, backwards=True))

    def replace(self, tr: Tracer, items: list[Value]) -> None:
        self.changes(tr)
        surplus = 0 if self.maxlen is None else max(0, len(items) - self.maxlen)
        self.items = items[surplus:]

    # Methods

    def m_appendleft(self, tr: Tracer, item: Value, /) -> None:
        self.changes(tr)
        self.items = [item, *self.items][: self.maxlen]

    def add_all(self, tr: Tracer, new: list[Value]) -> None:
        self.replace(tr, [*self.items, *new])

    def m_extendleft(self, tr: Tracer, items: Value, /) -> None:
        """`extendleft(items)`: they end up reversed; items taken before the iterator raises are added."""
        if items is self:
            items = self.of_same_kind(tr, self.unpack(tr))
        for item in each(tr, items):
            self.m_appendleft(tr, item)

    def m_insert(self, tr: Tracer, index: Value, item: Value, /) -> None:
        """`insert(index, item)`; IndexError when full."""
        if self.maxlen is not None and len(self.items) >= self.maxlen:
            tr.raise_(IndexError, "deque already at its maximum size")
        where = index_of(tr, index)
        self.changes(tr)
        self.items.insert(where, item)

    def m_pop(self, tr: Tracer) -> Value:
        return self._take(tr, -1)

    def m_popleft(self, tr: Tracer) -> Value:
        return self._take(tr, 0)

    def _take(self, tr: Tracer, index: int) -> Value:
        if not self.items:
            tr.raise_(IndexError, "pop from an empty deque")
        item = self.at(index)
        self.changes(tr)
        del self.items[index]
        return item

    def m_rotate(self, tr: Tracer, steps: Value | None = None, /) -> None:
        count = 1 if steps is None else index_of(tr, steps)
        self.changes(tr)
        if self.items:
            cut = -count % len(self.items)
            self.items = self.items[cut:] + self.items[:cut]

    # Back to bytecode

    def as_plain(self) -> Any:
        return deque(super().as_plain(), self.maxlen)

    def contents_type(self) -> type:
        return deque

    def reconstruct_empty(self, codegen: Codegen) -> None:
        codegen.push_function(deque)
        codegen.build("list", 0)
        codegen.load_const(self.maxlen)
        codegen.call(2)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        codegen.push_function(deque)
        self.reconstruct_contents(codegen)
        codegen.load_const(self.maxlen)
        codegen.call(2)


def new_deque(tr: Tracer, items: Sequence[Value], maxlen: int | None) -> DequeValue:
    """Return a deque made in the trace."""
    kept = list(items) if maxlen is None else list(items)[max(0, len(items) - maxlen) :]
    value = DequeValue(kept, maxlen)
    tr.journal.track_new(value)
    return value


@builds_type(deque)
def _build_deque(tr: Tracer, obj: deque[Any]) -> Value:
    return new_deque(tr, [build(tr, item) for item in obj], obj.maxlen)


@wraps_type(deque)
def wrap_deque(tr: Tracer, obj: deque[Any], source: Source) -> Value:
    """Wrap a deque found at a source: type, length and bound are guarded, items when they are read."""
    tr.guard(source, "TYPE_MATCH", deque)
    tr.guard(source, "LENGTH", len(obj))
    tr.guard(AttrSource(source, "maxlen"), "EQUALS_MATCH", obj.maxlen)
    items = (LazyItem(tr, item, source, index) for index, item in enumerate(obj))
    value = DequeValue(items, obj.maxlen, source=source)
    tr.journal.track_existing(value, obj)
    return value

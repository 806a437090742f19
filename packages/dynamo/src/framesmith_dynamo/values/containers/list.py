"""Lists."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.python_behaviour import BOUNDS_SLICE_LATE, EXTENDS_ITSELF_AS_STORED
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.containers.base import ContainerValue
from framesmith_dynamo.values.containers.items import LazyItem
from framesmith_dynamo.values.containers.sequence import MutableSequence, SequenceValue, index_of, subscript
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.errors import refuse_positional
from framesmith_dynamo.values.iteration.consuming import as_sequence, ask_length, listed
from framesmith_dynamo.values.iteration.iterators import holding, next_or_none
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class ListValue(MutableSequence):
    """A list. Create new ones with `new_list`."""

    python_types = (list,)
    family = "list"
    __slots__ = ()

    def of_same_kind(self, tr: Tracer, items: Sequence[Value]) -> Value:
        return new_list(tr, items)

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        where = subscript(tr, self, key)
        if isinstance(where, slice):
            if all(type_lookup(value.python_type(), name) is None for name in ("__iter__", "__getitem__")):
                refuse_positional(tr, operator.setitem, self, key, value)
            self._set_slice(tr, where, value)
            return
        index = self.checked(tr, where, "assignment index out of range")
        self.changes(tr)
        self.items[index] = value

    def _set_slice(self, tr: Tracer, where: slice, value: Value) -> None:
        span = range(len(self.items))[where]
        new = self.unpack(tr) if value.builtin_contents() is self else as_sequence(tr, value)
        if BOUNDS_SLICE_LATE:
            span = range(len(self.items))[where]
        if span.step != 1 and len(span) != len(new):
            tr.raise_(
                ValueError, f"attempt to assign sequence of size {len(new)} to extended slice of size {len(span)}"
            )
        self.changes(tr)
        if span.step == 1:  # the bounds may be those before the new items were taken
            self.items[span.start : max(span.start, span.stop)] = new
        else:
            self.items[where] = new

    def delitem(self, tr: Tracer, key: Value) -> None:
        where = subscript(tr, self, key)
        if not isinstance(where, slice):
            where = self.checked(tr, where, "assignment index out of range")
        self.changes(tr)
        del self.items[where]

    # Methods

    def m_extend(self, tr: Tracer, items: Value, /) -> None:
        """`extend(items)`; items taken before the iterator raises are added, but itself it takes in whole."""
        if items.builtin_contents() is self:
            self.add_all(tr, self.unpack(tr) if EXTENDS_ITSELF_AS_STORED else listed(tr, items))
            return
        if isinstance(items, SequenceValue):
            self.add_all(tr, items.unpack(tr))
            return
        iterator = items.iter_(tr)
        with holding(tr, iterator):
            ask_length(tr, items)
            while (item := next_or_none(tr, iterator)) is not None:
                self.add_all(tr, [item])

    def add_all(self, tr: Tracer, new: list[Value]) -> None:
        self.changes(tr)
        self.items.extend(new)

    def m_insert(self, tr: Tracer, index: Value, item: Value, /) -> None:
        where = insertion_index(tr, index)
        self.changes(tr)
        self.items.insert(where, item)

    def m_pop(self, tr: Tracer, index: Value | None = None, /) -> Value:
        if not self.items:
            tr.raise_(IndexError, "pop from empty list")
        where = self.checked(tr, -1 if index is None else insertion_index(tr, index), "index out of range")
        item = self.at(where)
        self.changes(tr)
        del self.items[where]
        return item

    def m_sort(self, tr: Tracer, *, key: Value | None = None, reverse: Value | None = None) -> None:
        """`sort(key=None, reverse=False)`; stable."""
        rows = [_SortKey(tr, item, item) for item in self.unpack(tr)]
        emptied: list[Value] = []  # the list's contents during calls of keys and comparisons
        self.changes(tr)
        self.items = emptied
        try:
            sort_rows(tr, rows, key, reverse)
        finally:
            modified = self.items is not emptied or bool(emptied)
            self.items = [row.item for row in rows]
        if modified:
            tr.raise_(ValueError, "list modified during sort")

    # Back to bytecode

    def contents_type(self) -> type:
        return list

    def reconstruct_empty(self, codegen: Codegen) -> None:
        codegen.build("list", 0)


def insertion_index(tr: Tracer, index: Value) -> int:
    """Return an index for `insert` and `pop`."""
    where = index_of(tr, index)
    if abs(where) > sys.maxsize:
        refuse_positional(tr, [].insert, index, index)
    return where


class _SortKey:
    """An item with a key that compares as the program would."""

    __slots__ = ("item", "key", "tr")

    def __init__(self, tr: Tracer, key: Value, item: Value) -> None:
        self.tr, self.key, self.item = tr, key, item

    def __lt__(self, other: _SortKey) -> bool:
        return operations.compare(self.tr, "<", self.key, other.key).bool_(self.tr)


def sorted_items(tr: Tracer, items: Sequence[Value], key: Value | None, reverse: Value | None) -> list[Value]:
    """Return the items in order: Python's own sort, so that comparisons are made in the same order."""
    rows = [_SortKey(tr, item, item) for item in items]
    sort_rows(tr, rows, key, reverse)
    return [row.item for row in rows]


def sort_rows(tr: Tracer, rows: list[_SortKey], key: Value | None, reverse: Value | None) -> None:
    """Compute each row's key, then sort; a comparison that raises leaves them partially sorted."""
    if key is not None and not key.is_none():
        for row in rows:
            row.key = tr.call(key, [row.item], {})
    rows.sort(reverse=reverse is not None and reverse.bool_(tr))


def new_list(tr: Tracer, items: Iterable[Value]) -> ListValue:
    """Return a list made in the trace."""
    value = ListValue(items)
    tr.journal.track_new(value)
    return value


@builds_type(list)
def _build_list(tr: Tracer, obj: list[Any]) -> Value:
    return new_list(tr, [build(tr, item) for item in obj])


#: The slice `lst[here]` to which `lst[here] = items` appends, for any length.
END: Final = slice(sys.maxsize, None)
#: The slice of all items, however many.
ALL: Final = slice(None)


class FoundList(ListValue):
    """An existing list: its length is guarded once anything but appending and replacing all items is done with it.

    Until then `added` holds the appended items.
    """

    __slots__ = ("_items", "added", "obj", "tr")

    def __init__(self, tr: Tracer, obj: list[Any], source: Source) -> None:
        self._items: list[Value] | None = None
        self.added: list[Value] = []
        self.obj = obj
        self.tr = tr
        ContainerValue.__init__(self, source=source)

    @property
    def items(self) -> list[Value]:
        """All items; reading them guards the length."""
        if self._items is None:
            source = self.source
            assert source is not None
            self.tr.guard(source, "LENGTH", len(self.obj))
            self._items = [LazyItem(self.tr, item, source, index) for index, item in enumerate(self.obj)] + self.added
        return self._items

    @items.setter
    def items(self, items: list[Value]) -> None:
        self._items = items

    def _set_slice(self, tr: Tracer, where: slice, value: Value) -> None:
        if where != ALL or value.builtin_contents() is self:
            super()._set_slice(tr, where, value)
            return
        new = as_sequence(tr, value)
        self.m_clear(tr)
        self.add_all(tr, [*new])

    def m_clear(self, tr: Tracer) -> None:
        self.changes(tr)
        self._items = []

    def add_all(self, tr: Tracer, new: list[Value]) -> None:
        self.changes(tr)
        (self.added if self._items is None else self._items).extend(new)

    def referents(self) -> Iterable[Value]:
        return self.added if self._items is None else self._items

    def item_changes(self) -> Any:
        if self._items is not None or not self.added:
            return None
        return [(self.tr.constant(END), TupleValue(self.added))]


@wraps_type(list)
def wrap_list(tr: Tracer, obj: list[Any], source: Source) -> Value:
    """Wrap a list found at a source: its type is guarded, length and items when they are read."""
    tr.guard(source, "TYPE_MATCH", list)
    value = FoundList(tr, obj, source)
    tr.journal.track_existing(value, obj)
    return value

"""Dicts, OrderedDicts and defaultdicts: insertion order, keys compared as Python does, guards only on entries read."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from framesmith_dynamo.python_behaviour import MISSING_SETS_ITEM
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.constants.constant import ConstantValue, plain
from framesmith_dynamo.values.containers.base import MutableContainer
from framesmith_dynamo.values.containers.items import HandedItem, LazyItem, resolved
from framesmith_dynamo.values.containers.mappings import MappingValue, is_unhashable, pairs_of
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.iteration.consuming import each
from framesmith_dynamo.values.iteration.iterators import ConsumingIterator, tracked
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type
from framesmith_guards import AttrSource, DictKeySource, DictValueSource, ItemSource, is_constant
from framesmith_guards.values.constants import dict_kind
from framesmith_sideeffects import DELETED, Deleted

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


def _is_clearing_seen() -> bool:
    """Whether iterators of an OrderedDict detect a `clear` other than by size, which depends on the Python version."""
    ordered = OrderedDict(a=1)
    iterator = iter(ordered)
    ordered.clear()
    try:
        next(iterator)
    except RuntimeError as error:
        return "mutated" in str(error)
    return False


CLEARING_IS_SEEN: Final = _is_clearing_seen()


@dataclass(slots=True)
class Entry:
    """A key, as the program passed it, and its value."""

    key: Value
    value: Value


@dataclass(eq=False)
class DictState:
    """The entries of a dict at one moment, and what it noted of changes; equal if the dict has the same entries."""

    entries: dict[object, Entry]
    marks: tuple[set[object], dict[object, Value], dict[object, Value], bool]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DictState) and self._items() == other._items()

    __hash__ = None  # type: ignore[assignment]

    def _items(self) -> list[tuple[object, int]]:
        return [(hashed, id(resolved(entry.value))) for hashed, entry in self.entries.items()]


class DictValue(MutableContainer, MappingValue):
    """A dict. Entries are found by their keys' `hash_key`. Create new ones with `new_dict`.

    For a dict found at a source: `found` holds its original keys, `stored` and `deleted` the changes of single keys, in
    the program's order and with the program's key objects: at another call a stored key may be present or not;
    `reordered` means that the order changed too, so that the replay writes all entries.
    """

    python_types = (dict, OrderedDict, defaultdict)
    __slots__ = ("cls", "deleted", "entries", "factory", "found", "keys_fixed", "real_keys", "reordered", "stored")

    def __init__(self, cls: type = dict, *, source: Source | None = None, factory: Value | None = None) -> None:
        super().__init__(source=source)
        self.cls = cls
        self.factory = factory
        self.entries: dict[object, Entry] = {}
        self.found: set[object] = set()
        self.real_keys: tuple[Any, ...] = ()
        self.stored: dict[object, Value] = {}
        self.deleted: dict[object, Value] = {}
        self.reordered = False
        self.keys_fixed = False

    def python_type(self) -> type:
        return self.cls

    # Guards

    def guard_keys(self, tr: Tracer) -> None:
        """Guard that the dict has exactly its original keys, in their order."""
        if self.source is not None and not self.keys_fixed and not (self.reordered and not self.found):
            tr.guard(self.source, "DICT_KEYS", self.real_keys)
            self.keys_fixed = True

    def guard_key_presence(self, tr: Tracer, hashed: object, key: Value) -> None:
        """Guard the presence or absence of a key, unless the trace itself decided it."""
        if self.source is None or self.keys_fixed or hashed in self.stored or hashed in self.deleted:
            return
        if not key.can_be_constant() or not is_constant(key.as_constant()):
            self.guard_keys(tr)
        elif hashed in self.found:
            tr.guard(self.source, "DICT_CONTAINS", key.as_constant())
        elif not self.reordered or self.found:
            tr.guard(self.source, "DICT_NOT_CONTAINS", key.as_constant())

    # Access

    def hashed(self, tr: Tracer, key: Value, holder: type | None = None) -> object:
        """Return what stands for a key among the entries; `holder` may be named in the error for one without a hash."""
        return operations.hash_key(tr, key, holder)

    def lookup(self, tr: Tracer, key: Value) -> Value | None:
        hashed = self.hashed(tr, key, dict)
        entry = self.entries.get(hashed)
        self.guard_key_presence(tr, hashed, key)
        return None if entry is None else self._value_of(entry)

    @staticmethod
    def _value_of(entry: Entry) -> Value:
        if isinstance(entry.value, LazyItem):
            entry.value = resolved(entry.value)
        return entry.value

    def keys_now(self, tr: Tracer) -> list[Value]:
        self.guard_keys(tr)
        for entry in self.entries.values():
            entry.key = resolved(entry.key)
        return [entry.key for entry in self.entries.values()]

    def values_now(self, tr: Tracer) -> list[Value]:
        self.guard_keys(tr)
        return [self._value_of(entry) for entry in self.entries.values()]

    def getitem(self, tr: Tracer, key: Value) -> Value:
        value = self.lookup(tr, key)
        return self.missing(tr, key) if value is None else value

    def missing(self, tr: Tracer, key: Value) -> Value:
        """The result of `d[key]` for a missing key."""
        value = self.default_for(tr, key)
        if not MISSING_SETS_ITEM:
            return self.m_setdefault(tr, key, value)
        self.setitem(tr, key, value)
        return value

    def default_for(self, tr: Tracer, key: Value) -> Value:
        """The factory's result for a key; the program's KeyError when there is no factory."""
        if self.factory is None or self.factory.is_none():
            tr.raise_(KeyError, key)
        return tr.call(self.factory, [], {})

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        hashed = self.hashed(tr, key, _hasher(self.cls))
        entry = self.entries.get(hashed)
        if entry is not None and entry.value is value:  # nothing changes, as where an optimizer stores its state again
            return
        self.changes(tr)
        self.stored.setdefault(hashed, key)
        if entry is None:
            self.version += 1
            self.entries[hashed] = Entry(key, value)
        else:
            entry.value = value

    def delitem(self, tr: Tracer, key: Value) -> None:
        if self.discard(tr, key) is None:
            tr.raise_(KeyError, key)

    def discard(self, tr: Tracer, key: Value) -> Value | None:
        """Remove a key; return its value, or None when it was missing."""
        hashed = self.hashed(tr, key, _hasher(self.cls))
        value = self.lookup(tr, key)
        if value is None:
            return None
        self.changes(tr)
        self.version += 1
        entry = self.entries.pop(hashed)
        self.stored.pop(hashed, None)
        self.guard_key_presence(tr, hashed, key)  # a store does not depend on the key's presence; its undo does
        if hashed in self.found:
            self.deleted[hashed] = entry.key
        return value

    def contains(self, tr: Tracer, item: Value) -> Value:
        hashed = self.hashed(tr, item, dict)
        self.guard_key_presence(tr, hashed, item)
        return tr.constant(hashed in self.entries)

    def len_(self, tr: Tracer) -> Value:
        self.guard_keys(tr)
        return tr.constant(len(self.entries))

    def size_now(self) -> int:
        return len(self.entries)

    def iter_(self, tr: Tracer) -> Value:
        return tracked(tr, ConsumingIterator(type(iter(self.cls())), self.keys_now(tr), self))

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        other = other.builtin_contents()
        if op not in ("==", "!=") or not isinstance(other, DictValue):
            return None
        return tr.constant(self._equals(tr, other) is (op == "=="))

    def _equals(self, tr: Tracer, other: DictValue) -> bool:
        mine, theirs = self.pairs_now(tr), other.pairs_now(tr)
        if len(mine) != len(theirs):
            return False
        if self.cls is other.cls is OrderedDict and list(self.entries) != list(other.entries):
            return False
        return all(
            hashed in other.entries and operations.equal(tr, value, other.entries[hashed].value)
            for hashed, (_, value) in zip(list(self.entries), mine, strict=True)
        )

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self.united(tr, self, other) if op == "|" else None

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        items = other.builtin_contents()
        asked_first = isinstance(items, DictValue) and items.cls is self.cls
        return None if op != "|" or asked_first else self.united(tr, other, self)

    def united(self, tr: Tracer, left: Value, right: Value) -> Value | None:
        """`left | right` as the type of this dict, which is one of them, computes it."""
        items = left.builtin_contents()
        if not isinstance(items, DictValue) or not isinstance(right.builtin_contents(), DictValue):
            return None
        made = new_dict(tr, cls=self.cls, factory=self.factory)
        made.merge(tr, items.pairs_now(tr) if self.cls is dict else pairs_of(tr, left, self.cls))
        made.merge(tr, pairs_of(tr, right, self.cls))
        return made

    def inplace_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op != "|":
            return None
        self.m_update(tr, other)
        return self

    def copied(self, tr: Tracer) -> DictValue:
        """Return a new dict of the same type with the same items."""
        return new_dict(tr, self.pairs_now(tr), self.cls, factory=self.factory)

    # Methods

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "default_factory" and self.factory is not None:
            return self.factory
        return super().getattr_(tr, name)

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        if name != "default_factory" or self.factory is None:
            super().setattr_(tr, name, value)
            return
        if self.source is not None:
            tr.journal.store_attr(self, name, value)
        self.factory = value

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        names = _ORDERED.get(name, ())
        if names and self.cls is not OrderedDict:
            if not hasattr(self.cls, name):
                return tr.call(self.getattr_(tr, name), args, kwargs)
            if kwargs or (args and name == "popitem"):
                self.refuse_call(tr, name, args, kwargs)
        by_name = names[len(args) :][: len(kwargs)]
        if kwargs and set(by_name) == set(kwargs):
            args, kwargs = [*args, *(kwargs[name] for name in by_name)], {}
        return super().call_method(tr, name, args, kwargs)

    def m_pop(self, tr: Tracer, key: Value, default: Value | None = None, /) -> Value:
        if self.cls is not OrderedDict and not self.entries and is_unhashable(key):
            self.guard_keys(tr)  # an empty dict does not call the key's hash
        elif (value := self.discard(tr, key)) is not None:
            return value
        return self._no_key(tr, key) if default is None else default

    def _no_key(self, tr: Tracer, key: Value) -> NoReturn:
        """Raise KeyError: an OrderedDict's own methods make a tuple the arguments of the error, not its argument."""
        tr.raise_(KeyError, *(key.unpack(tr) if self.cls is OrderedDict and isinstance(key, TupleValue) else [key]))

    def m_popitem(self, tr: Tracer, last: Value | None = None, /) -> Value:
        """`popitem()`; `last=False` takes the first item of an OrderedDict."""
        pairs = self.pairs_now(tr)
        if not pairs:
            tr.raise_(KeyError, "dictionary is empty" if self.cls is OrderedDict else "popitem(): dictionary is empty")
        key, value = pairs[-1 if last is None or last.bool_(tr) else 0]
        self.discard(tr, key)
        return TupleValue([key, value])

    def m_move_to_end(self, tr: Tracer, key: Value, last: Value | None = None, /) -> None:
        self.guard_keys(tr)
        if not self.entries and is_unhashable(key):
            self._no_key(tr, key)
        hashed = self.hashed(tr, key, _hasher(self.cls))
        if hashed not in self.entries:
            self._no_key(tr, key)
        self.changes(tr)
        self.version += 1
        self.reordered = True
        entry = self.entries.pop(hashed)
        if last is None or last.bool_(tr):
            self.entries[hashed] = entry
        else:
            self.entries = {hashed: entry, **self.entries}

    def m_clear(self, tr: Tracer) -> None:
        self.changes(tr)
        self.version += self.cls is not OrderedDict or CLEARING_IS_SEEN
        self.reordered = True
        self.entries.clear()
        self.found.clear()
        self.stored.clear()
        self.deleted.clear()

    def m_copy(self, tr: Tracer) -> Value:
        return self.copied(tr)

    def m_fromkeys(self, tr: Tracer, keys: Value, value: Value | None = None, /) -> Value:
        filler = tr.constant(None) if value is None else value
        factory = tr.constant(None) if self.cls is defaultdict else None
        made = new_dict(tr, cls=self.cls, factory=factory)
        made.merge(tr, ((key, filler) for key in each(tr, keys)))
        return made

    def m___missing__(self, tr: Tracer, key: Value, /) -> Value:
        """The result of `d[key]` for a missing key."""
        return self.missing(tr, key)

    def m___reversed__(self, tr: Tracer) -> Value:
        keys = self.keys_now(tr)[::-1]
        return tracked(tr, ConsumingIterator(type(reversed(self.cls())), keys, self, backwards=True))

    def hand_over(self, tr: Tracer, hashed: object) -> None:
        """Leave an item of an existing dict to a call after the graph: later uses of it raise UsedAcrossCall."""
        assert self.source is not None
        self.entries[hashed].value = HandedItem(tr, None, self.source, hashed)

    def is_handed_over(self, hashed: object) -> bool:
        """Whether an item was left to a call after the graph."""
        return isinstance(self.entries[hashed].value, HandedItem)

    # Earlier states, for bodies that undo what they do

    def saved(self) -> DictState:
        entries = {hashed: Entry(entry.key, entry.value) for hashed, entry in self.entries.items()}
        marks = ({*self.found}, {**self.stored}, {**self.deleted}, self.reordered)
        return DictState(entries, marks)

    def restore(self, saved: DictState) -> None:
        self.entries = saved.entries
        self.found, self.stored, self.deleted, self.reordered = saved.marks

    # Back to bytecode

    def as_plain(self) -> Any:
        pairs = [(plain(resolved(entry.key)), plain(self._value_of(entry))) for entry in self.entries.values()]
        if self.factory is not None:
            return defaultdict(plain(self.factory), pairs)
        return OrderedDict(pairs) if self.cls is OrderedDict else dict(pairs)

    def as_proxy(self) -> Any:
        return {plain(resolved(entry.key)): self._value_of(entry).as_proxy() for entry in self.entries.values()}

    def referents(self) -> Iterable[Value]:
        for entry in self.entries.values():
            yield entry.key
            yield entry.value
        if self.factory is not None:
            yield self.factory

    def contents_type(self) -> type:
        return OrderedDict if self.cls is OrderedDict else dict

    def item_changes(self) -> Sequence[tuple[Value, Value | Deleted]] | None:  # type: ignore[override]
        if self.reordered or self.source is None:
            return None
        gone: list[tuple[Value, Value | Deleted]] = [(key, DELETED) for key in self.deleted.values()]
        kept = [(key, self.entries[hashed].value) for hashed, key in self.stored.items()]
        return gone + kept

    def reconstruct_contents(self, codegen: Codegen) -> None:
        for entry in self.entries.values():
            codegen(entry.key)
            codegen(entry.value)
        codegen.build("map", len(self.entries))

    def reconstruct_empty(self, codegen: Codegen) -> None:
        if self.cls is dict:
            codegen.build("map", 0)
            return
        codegen.push_function(self.cls)
        if self.factory is not None:
            codegen(self.factory)
        codegen.call(int(self.factory is not None))

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None or self.cls is dict:
            super().reconstruct(codegen)
            return
        codegen.push_function(self.cls)
        if self.factory is not None:
            codegen(self.factory)
        self.reconstruct_contents(codegen)
        codegen.call(1 + (self.factory is not None))


#: Methods of OrderedDict only, or with keywords there.
_ORDERED: Final = {
    "move_to_end": ("key", "last"),
    "popitem": ("last",),
    "pop": ("key", "default"),
    "setdefault": ("key", "default"),
}


def _hasher(cls: type) -> type | None:
    """Return the type that an error may name where a key is stored or removed: an OrderedDict hashes it by itself."""
    return None if cls is OrderedDict else dict


def new_dict(
    tr: Tracer, pairs: Iterable[tuple[Value, Value]] = (), cls: type = dict, *, factory: Value | None = None
) -> DictValue:
    """Return a dict made in the trace; `cls` is dict, OrderedDict or defaultdict (with its factory)."""
    value = DictValue(cls, factory=factory)
    tr.journal.track_new(value)
    for key, item in pairs:
        hashed = operations.hash_key(tr, key, _hasher(cls))
        known = value.entries.get(hashed)
        value.entries[hashed] = Entry(key if known is None else known.key, item)
    return value


@builds_type(dict, OrderedDict)
def _build_dict(tr: Tracer, obj: dict[Any, Any]) -> Value:
    return new_dict(tr, [(build(tr, key), build(tr, item)) for key, item in obj.items()], type(obj))


# Existing dicts: their keys are known from the start, their items wrapped when they are read


@wraps_type(dict, defaultdict)
def wrap_dict(tr: Tracer, obj: dict[Any, Any], source: Source) -> Value:
    """Wrap a dict found at a source: its type is guarded; keys and items when they are read."""
    tr.guard(source, "TYPE_MATCH", type(obj))
    value = DictValue(type(obj), source=source)
    if isinstance(obj, defaultdict):
        value.factory = tr.wrap(obj.default_factory, AttrSource(source, "default_factory"))
    fill_from(tr, value, obj, source)
    tr.journal.track_existing(value, obj)
    return value


def fill_from(
    tr: Tracer, value: DictValue, obj: dict[Any, Any], source: Source, step: Callable[..., Source] = ItemSource
) -> None:
    """Add an existing dict's items: by key if that is a constant, else by position under a guard on all keys.

    The order is that of iteration; positions are those of the hash table, which `move_to_end` leaves unchanged. `step`
    is the source of an item: `StoredItemSource` bypasses the class's own `__getitem__`.
    """
    kind = dict_kind(obj)
    rows = list(enumerate(kind.items(obj)))
    value.real_keys = tuple(kind.keys(obj))
    if isinstance(obj, OrderedDict) and (order := tuple(OrderedDict.keys(obj))) != value.real_keys:
        at = {id(key): place for place, key in enumerate(order)}
        rows.sort(key=lambda row: at[id(row[1][0])])
        value.real_keys = order
    for index, (key, item) in rows:
        if type(key) is str:  # the usual case, and there may be many
            value.entries[key] = Entry(ConstantValue(key), LazyItem(tr, item, source, key, step))
            value.found.add(key)
            continue
        if is_constant(key):
            key_value = tr.constant(key)
            entry = Entry(key_value, LazyItem(tr, item, source, key, step))
        else:
            value.guard_keys(tr)
            key_value = tr.wrap(key, DictKeySource(source, index))
            entry = Entry(key_value, LazyItem(tr, item, source, index, DictValueSource))
        hashed = operations.hash_key(tr, key_value, dict)
        value.entries[hashed] = entry
        value.found.add(hashed)

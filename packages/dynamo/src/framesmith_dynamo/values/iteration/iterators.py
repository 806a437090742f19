"""Iterators: lazy, stateful, and reconstructed at their position when one outlives the trace.

Every iterator is tracked as a new object, so it keeps its identity; `reconstruct` pushes it in its state at the end of
the trace.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeVar

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

LIVE_ITERATOR = register_break(
    "live-iterator",
    what="an iterator over a container that the trace has changed is needed outside the trace",
    why="the iterator cannot be set to its position before the container's changes are replayed",
    hint="iterate over a copy of the container",
)

T = TypeVar("T", bound="IteratorValue")


def stop(tr: Tracer) -> NoReturn:
    """Raise the program's StopIteration."""
    tr.raise_(StopIteration)


def next_or_none(tr: Tracer, iterator: Value) -> Value | None:
    """Return the next item, or None at the end."""
    tr.facts.step()
    try:
        return iterator.next_(tr)
    except TracedRaise as raised:
        if issubclass(raised.value.python_type(), StopIteration):
            return None
        raise


@contextlib.contextmanager
def holding(tr: Tracer, iterator: Value) -> Iterator[None]:
    """Context manager: C code refers to an iterator, perhaps as the only owner."""
    working = tr.facts.working  # the trace may be over when a loop that was left is freed
    working.append(iterator)
    try:
        yield
    finally:
        working.remove(iterator)


def drain(tr: Tracer, iterator: Value) -> list[Value]:
    """Return all remaining items."""
    items: list[Value] = []
    with holding(tr, iterator):
        while (item := next_or_none(tr, iterator)) is not None:
            items.append(item)
    return items


class IteratorValue(Value):
    """An iterator of a builtin type."""

    exact_operators = True
    __slots__ = ()
    METHODS = ("__next__", "__iter__")

    def iter_(self, tr: Tracer) -> Value:
        return self

    def unpack(self, tr: Tracer) -> list[Value]:
        return drain(tr, self)

    def hash_key(self, tr: Tracer) -> object:
        return self

    def len_(self, tr: Tracer) -> Value:
        tr.raise_(TypeError, f"object of type '{self.python_type().__name__}' has no len()")

    def contains(self, tr: Tracer, item: Value) -> Value:
        while (own := next_or_none(tr, self)) is not None:
            if operations.equal(tr, own, item):
                return tr.constant(True)
        return tr.constant(False)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(self.python_type())
        if name in self.METHODS:
            return BuiltinMethodValue(self, name)
        if not hasattr(self.python_type(), name):
            tr.raise_(AttributeError, f"'{self.python_type().__name__}' object has no attribute '{name}'")
        return super().getattr_(tr, name)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name in self.METHODS and not args and not kwargs:
            return self.next_(tr) if name == "__next__" else self
        return super().call_method(tr, name, args, kwargs)


def tracked(tr: Tracer, iterator: T) -> T:
    """Register a new iterator with the journal."""
    tr.journal.track_new(iterator)
    return iterator


class SequenceIterator(IteratorValue):
    """`iter` or `reversed` of a list, tuple, string or range: reads it at each step, so that it sees mutations."""

    __slots__ = ("done", "index", "owner", "step")

    def __init__(self, owner: Value, index: int = 0, step: int = 1) -> None:
        super().__init__()
        self.owner = owner
        self.index = index
        self.step = step
        self.done = False

    def python_type(self) -> type:
        empty = range(0) if self.owner.python_type() is range else self.owner.python_type()()
        return type(iter(empty) if self.step > 0 else reversed(empty))

    def next_(self, tr: Tracer) -> Value:
        if self.done or not 0 <= self.index < self.owner.size_now():
            self.done = True
            stop(tr)
        item = self.owner.item_now(tr, self.index)
        self.index += self.step
        return item

    def referents(self) -> Iterable[Value]:
        return () if self.done else (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        forward = self.step > 0
        if self.done:
            codegen.push_function(iter if forward else reversed)
            codegen.build("list", 0)
            codegen.call(1)
            return
        codegen.push_call(iter if forward else reversed, (self.owner,))
        start = 0 if forward else self.owner.size_now() - 1
        if self.index != start or not forward:
            self._check_unchanged()
        if self.index != start:
            codegen.dup()
            codegen.load_method("__setstate__")
            codegen.load_const(self.index)
            codegen.call_method(1)
            codegen.pop()

    def _check_unchanged(self) -> None:
        if self.owner.mutation is not None and not self.owner.mutation.is_new and self.owner.has_changed():
            raise GraphBreak(LIVE_ITERATOR, self.owner.describe())


Reader = Callable[[Tracer, Value], Value]
#: The names in Python's errors of containers changed during iteration, and those whose iterators detect every change.
WORDS: dict[type, str] = {set: "Set", deque: "deque", OrderedDict: "OrderedDict"}
EVERY_CHANGE = (deque, OrderedDict)


class ConsumingIterator(IteratorValue):
    """An iterator over a dict, set or deque: its keys at the start, read one by one.

    `read` returns the item of a key at that time (its current value). The container must keep its size, and its keys; a
    deque and an OrderedDict must not change at all. Pushed, it is `iter(shown)` (or `reversed`) advanced by the items
    taken, where `shown` is the container or a view of it.
    """

    __slots__ = ("backwards", "cls", "done", "owner", "read", "remaining", "shown", "size", "taken", "version")

    def __init__(
        self,
        cls: type,
        items: Iterable[Value],
        owner: Value,
        *,
        shown: Value | None = None,
        read: Reader | None = None,
        backwards: bool = False,
    ) -> None:
        super().__init__()
        self.cls = cls
        self.backwards = backwards
        self.owner = owner
        self.shown = owner if shown is None else shown
        self.read = read
        self.remaining = deque(items)
        self.size = self.owner.size_now()
        self.version = self.owner.version
        self.taken = 0
        self.done = False

    def python_type(self) -> type:
        return self.cls

    def next_(self, tr: Tracer) -> Value:
        if self.done:
            stop(tr)
        if self.owner.version != self.version or self.owner.size_now() != self.size:
            self._notice(tr)
        if not self.remaining:
            self.done = True
            stop(tr)
        self.taken += 1
        item = self.remaining.popleft()
        return item if self.read is None else self.read(tr, item)

    def _notice(self, tr: Tracer) -> None:
        """Raise Python's error for a changed container, or break where the order depends on the hash table."""
        kind = next((kind for kind in WORDS if issubclass(self.owner.python_type(), kind)), dict)
        if kind in EVERY_CHANGE:
            self.done = kind is OrderedDict
            word = "mutated" if self.owner.version != self.version else "changed size"
        elif self.owner.size_now() == self.size:
            raise GraphBreak(LIVE_ITERATOR, f"{self.owner.describe()}, which has other items now")
        else:
            self.size = -1  # it raises again at the next call
            word = "changed size"
        tr.raise_(RuntimeError, f"{WORDS.get(kind, 'dictionary')} {word} during iteration")

    def referents(self) -> Iterable[Value]:
        return (self.shown,)

    def reconstruct(self, codegen: Codegen) -> None:
        touched = self.owner.version != self.version or self.owner.size_now() != self.size
        if touched or (self.owner.source is not None and self.owner.has_changed()):
            raise GraphBreak(LIVE_ITERATOR, self.owner.describe())
        codegen.push_call(reversed if self.backwards else iter, (self.shown,))
        if self.taken == 0:
            return
        codegen.dup()
        temporary = codegen.new_temp()
        codegen.store(temporary)
        codegen.push_function(deque)
        codegen.push_function(itertools.islice)
        codegen.load(temporary)
        codegen.load_const(self.taken)
        codegen.call(2)
        codegen.load_const(0)
        codegen.call(2)
        codegen.pop()

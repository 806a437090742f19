"""Iterators: lazy, with state, and rebuilt at their position when one outlives the trace.

Every iterator is tracked as a new object, so it keeps its identity; `reconstruct` pushes it as it stands at the end of
the trace.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, cast

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

LIVE_ITERATOR = register_break(
    "live-iterator",
    what="an iterator over a container that the trace has changed is needed outside the trace",
    why="the iterator cannot be put back to its position before the container's changes are made",
    hint="iterate over a copy of the container",
)

T = TypeVar("T", bound="IteratorValue")


def stop(tr: Tracer) -> NoReturn:
    """The program's StopIteration."""
    tr.raise_(StopIteration)


def next_or_none(tr: Tracer, iterator: Value) -> Value | None:
    """The next item, or None at the end."""
    try:
        return iterator.next_(tr)
    except TracedRaise as raised:
        if issubclass(raised.value.python_type(), StopIteration):
            return None
        raise


def drain(tr: Tracer, iterator: Value) -> list[Value]:
    """All remaining items."""
    items: list[Value] = []
    while (item := next_or_none(tr, iterator)) is not None:
        items.append(item)
    return items


def push_call(
    codegen: Codegen, function: Callable[..., Any], args: Iterable[Value], constants: Sequence[Any] = ()
) -> None:
    """Push `function(*args, *constants)`."""
    codegen.push_callable(lambda: codegen.load_const(function))
    values = tuple(args)
    for value in values:
        codegen(value)
    for constant in constants:
        codegen.load_const(constant)
    codegen.call(len(values) + len(constants))


class IteratorValue(Value):
    """An iterator of a builtin type."""

    exact_operators = True
    __slots__ = ()
    METHODS = ("__next__", "__iter__")

    def iter_(self, tr: Tracer) -> Value:
        return self

    def unpack(self, tr: Tracer) -> list[Value]:
        return drain(tr, self)

    def bool_(self, tr: Tracer) -> bool:
        return True

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


class Indexed(Protocol):
    """What a sequence value offers to iterate over it by position."""

    def size_now(self) -> int:
        """The present number of items."""

    def item_now(self, tr: Tracer, index: int) -> Value:
        """The item at a real, valid index."""


class SequenceIterator(IteratorValue):
    """`iter` or `reversed` of a list, tuple, string or range: reads it at each step, so that it sees mutations."""

    __slots__ = ("done", "index", "owner", "step")

    def __init__(self, owner: Value, index: int = 0, step: int = 1) -> None:
        super().__init__()
        self.owner = owner
        self.index = index
        self.step = step
        self.done = False

    @property
    def _sequence(self) -> Indexed:
        return cast(Indexed, self.owner)

    def python_type(self) -> type:
        empty = range(0) if self.owner.python_type() is range else self.owner.python_type()()
        return type(iter(empty) if self.step > 0 else reversed(empty))

    def next_(self, tr: Tracer) -> Value:
        if self.done or not 0 <= self.index < self._sequence.size_now():
            self.done = True
            stop(tr)
        item = self._sequence.item_now(tr, self.index)
        self.index += self.step
        return item

    def referents(self) -> Iterable[Value]:
        return () if self.done else (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        forward = self.step > 0
        if self.done:
            codegen.push_callable(lambda: codegen.load_const(iter if forward else reversed))
            codegen.build("list", 0)
            codegen.call(1)
            return
        push_call(codegen, iter if forward else reversed, (self.owner,))
        start = 0 if forward else self._sequence.size_now() - 1
        if self.index != start:
            self._check_unchanged()
            codegen.dup()
            codegen.load_method("__setstate__")
            codegen.load_const(self.index)
            codegen.call_method(1)
            codegen.pop()

    def _check_unchanged(self) -> None:
        if self.owner.mutation is not None and not self.owner.mutation.is_new and getattr(self.owner, "changed", False):
            raise GraphBreak(LIVE_ITERATOR, self.owner.describe())


Reader = Callable[[Tracer, Value], Value]
#: How Python complains when a container changes under an iterator, by the container's type.
COMPLAINTS: dict[type, str] = {set: "Set changed size during iteration", deque: "deque mutated during iteration"}


class ConsumingIterator(IteratorValue):
    """An iterator over a dict, set or deque: keys as they were at the start, read one by one.

    `read` gives the item of a key when asked for it (the value it has by then). The owner's `state` must stay the
    same: its length, or a count of changes. Pushed, it is `iter(owner)` (or `reversed`) advanced by the items taken.
    """

    __slots__ = ("backwards", "cls", "done", "owner", "read", "remaining", "state", "taken")

    def __init__(
        self,
        tr: Tracer,
        cls: type,
        owner: Value,
        items: Iterable[Value],
        *,
        read: Reader | None = None,
        backwards: bool = False,
    ) -> None:
        super().__init__()
        self.cls = cls
        self.backwards = backwards
        self.owner = owner
        self.read = read
        self.remaining = deque(items)
        self.state = self._state_now(tr)
        self.taken = 0
        self.done = False

    def _state_now(self, tr: Tracer) -> int:
        version: int | None = getattr(self.owner, "version", None)
        return int(self.owner.len_(tr).as_constant()) if version is None else version

    def python_type(self) -> type:
        return self.cls

    def next_(self, tr: Tracer) -> Value:
        if self.done:
            stop(tr)
        if self._state_now(tr) != self.state:
            complaint = COMPLAINTS.get(self.owner.python_type(), "dictionary changed size during iteration")
            tr.raise_(RuntimeError, complaint)
        if not self.remaining:
            self.done = True
            stop(tr)
        self.taken += 1
        item = self.remaining.popleft()
        return item if self.read is None else self.read(tr, item)

    def referents(self) -> Iterable[Value]:
        return (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        if getattr(self.owner, "changed", False):
            raise GraphBreak(LIVE_ITERATOR, self.owner.describe())
        push_call(codegen, reversed if self.backwards else iter, (self.owner,))
        if self.taken == 0:
            return
        codegen.dup()
        temporary = codegen.new_temp()
        codegen.store(temporary)
        codegen.push_callable(lambda: codegen.load_const(deque))
        codegen.push_callable(lambda: codegen.load_const(itertools.islice))
        codegen.load(temporary)
        codegen.load_const(self.taken)
        codegen.call(2)
        codegen.load_const(0)
        codegen.call(2)
        codegen.pop()


class EnumerateIterator(IteratorValue):
    """`enumerate(inner, start)`."""

    python_types = (enumerate,)
    __slots__ = ("count", "inner", "make_pair")

    def __init__(self, inner: Value, count: int, make_pair: Callable[[list[Value]], Value]) -> None:
        super().__init__()
        self.inner = inner
        self.count = count
        self.make_pair = make_pair

    def python_type(self) -> type:
        return enumerate

    def next_(self, tr: Tracer) -> Value:
        item = self.inner.next_(tr)
        pair = self.make_pair([tr.constant(self.count), item])
        self.count += 1
        return pair

    def referents(self) -> Iterable[Value]:
        return (self.inner,)

    def reconstruct(self, codegen: Codegen) -> None:
        push_call(codegen, enumerate, (self.inner,), (self.count,))


class ZipIterator(IteratorValue):
    """`zip(*inners, strict=strict)`."""

    python_types = (zip,)
    __slots__ = ("inners", "make_tuple", "strict")

    def __init__(self, inners: Sequence[Value], strict: bool, make_tuple: Callable[[list[Value]], Value]) -> None:
        super().__init__()
        self.inners = list(inners)
        self.strict = strict
        self.make_tuple = make_tuple

    def python_type(self) -> type:
        return zip

    def next_(self, tr: Tracer) -> Value:
        if not self.inners:
            stop(tr)
        items: list[Value] = []
        for position, inner in enumerate(self.inners):
            item = next_or_none(tr, inner)
            if item is None:
                self._ended(tr, position)
            items.append(item)
        return self.make_tuple(items)

    def _ended(self, tr: Tracer, position: int) -> NoReturn:
        if self.strict and position > 0:
            self._mismatch(tr, position, "shorter", position)
        if self.strict:
            for later, inner in enumerate(self.inners[1:], 1):
                if next_or_none(tr, inner) is not None:
                    self._mismatch(tr, later, "longer", later)
        stop(tr)

    def _mismatch(self, tr: Tracer, position: int, word: str, others: int) -> NoReturn:
        than = "argument 1" if others == 1 else f"arguments 1-{others}"
        tr.raise_(ValueError, f"zip() argument {position + 1} is {word} than {than}")

    def referents(self) -> Iterable[Value]:
        return self.inners

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_callable(lambda: codegen.load_const(zip))
        for inner in self.inners:
            codegen(inner)
        if self.strict:
            codegen.load_const(True)
        codegen.call(len(self.inners) + self.strict, ("strict",) if self.strict else ())


class MapIterator(IteratorValue):
    """`map(function, *inners)`."""

    python_types = (map,)
    __slots__ = ("function", "inners")

    def __init__(self, function: Value, inners: Sequence[Value]) -> None:
        super().__init__()
        self.function = function
        self.inners = list(inners)

    def python_type(self) -> type:
        return map

    def next_(self, tr: Tracer) -> Value:
        args = [inner.next_(tr) for inner in self.inners]
        return tr.call(self.function, args, {})

    def referents(self) -> Iterable[Value]:
        return (self.function, *self.inners)

    def reconstruct(self, codegen: Codegen) -> None:
        push_call(codegen, map, (self.function, *self.inners))


class FilterIterator(IteratorValue):
    """`filter(function, inner)`; a constant None keeps true items."""

    python_types = (filter,)
    __slots__ = ("function", "inner")

    def __init__(self, function: Value, inner: Value) -> None:
        super().__init__()
        self.function = function
        self.inner = inner

    def python_type(self) -> type:
        return filter

    def next_(self, tr: Tracer) -> Value:
        while True:
            item = self.inner.next_(tr)
            verdict = item if self._keeps_true() else tr.call(self.function, [item], {})
            if operations.truth(tr, verdict):
                return item

    def _keeps_true(self) -> bool:
        return self.function.is_constant() and self.function.as_constant() in (None, bool)

    def referents(self) -> Iterable[Value]:
        return (self.function, self.inner)

    def reconstruct(self, codegen: Codegen) -> None:
        push_call(codegen, filter, (self.function, self.inner))


class SentinelIterator(IteratorValue):
    """`iter(function, sentinel)`."""

    __slots__ = ("done", "function", "sentinel")

    def __init__(self, function: Value, sentinel: Value) -> None:
        super().__init__()
        self.function = function
        self.sentinel = sentinel
        self.done = False

    def python_type(self) -> type:
        return type(iter(int, 1))

    def next_(self, tr: Tracer) -> Value:
        if self.done:
            stop(tr)
        item = tr.call(self.function, [], {})
        if operations.equal(tr, item, self.sentinel):
            self.done = True
            stop(tr)
        return item

    def referents(self) -> Iterable[Value]:
        return (self.function, self.sentinel)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.done:
            push_call(codegen, iter, (), ((),))
        else:
            push_call(codegen, iter, (self.function, self.sentinel))


class CountIterator(IteratorValue):
    """`itertools.count(current, step)`."""

    python_types = (itertools.count,)
    __slots__ = ("current", "step")

    def __init__(self, current: Value, step: Value) -> None:
        super().__init__()
        self.current = current
        self.step = step

    def python_type(self) -> type:
        return itertools.count

    def next_(self, tr: Tracer) -> Value:
        item = self.current
        self.current = operations.binary(tr, "+", item, self.step)
        return item

    def unpack(self, tr: Tracer) -> list[Value]:
        self.refuse("collecting all items of an endless iterator")

    def referents(self) -> Iterable[Value]:
        return (self.current, self.step)

    def reconstruct(self, codegen: Codegen) -> None:
        push_call(codegen, itertools.count, (self.current, self.step))


class RepeatIterator(IteratorValue):
    """`itertools.repeat(item, left)`; None: for ever."""

    python_types = (itertools.repeat,)
    __slots__ = ("item", "left")

    def __init__(self, item: Value, left: int | None) -> None:
        super().__init__()
        self.item = item
        self.left = left

    def python_type(self) -> type:
        return itertools.repeat

    def next_(self, tr: Tracer) -> Value:
        if self.left is not None:
            if self.left <= 0:
                stop(tr)
            self.left -= 1
        return self.item

    def unpack(self, tr: Tracer) -> list[Value]:
        if self.left is None:
            self.refuse("collecting all items of an endless iterator")
        return super().unpack(tr)

    def referents(self) -> Iterable[Value]:
        return (self.item,)

    def reconstruct(self, codegen: Codegen) -> None:
        push_call(codegen, itertools.repeat, (self.item,), () if self.left is None else (self.left,))

"""Iterators over other iterables or functions: enumerate, zip, map, filter, `iter` with a sentinel, count, repeat."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, WrapperDescriptorType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.iteration.iterators import IteratorValue, next_or_none, stop

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

T = TypeVar("T")

ITERATOR_CLASS = register_break(
    "iterator-class",
    what="an enumerate, zip, map or filter over an iterator of the program's own class is needed outside the trace",
    why="its reconstruction would call the iterator's __iter__ once more",
    hint="have __iter__ do nothing but `return self`, or iterate over a list of the items",
)


def _itself(self: T) -> T:
    return self


def _is_its_own_iterator(iterator: type) -> bool:
    """Whether `iter()` of an instance, which is an iterator, is known to return itself and to have no effect."""
    method = next((vars(cls)["__iter__"] for cls in iterator.__mro__ if "__iter__" in vars(cls)), None)
    if isinstance(method, FunctionType):
        return method.__code__.co_argcount > 0 and method.__code__.co_code == _itself.__code__.co_code
    return isinstance(method, WrapperDescriptorType)


def _passed_again(inner: Value) -> Value:
    """Return an iterator to pass to `enumerate` and the like again; breaks where the program would notice."""
    if not isinstance(inner, IteratorValue) and not _is_its_own_iterator(inner.python_type()):
        raise GraphBreak(ITERATOR_CLASS, inner.describe())
    return inner


class EnumerateIterator(IteratorValue):
    """`enumerate(inner, start)`."""

    python_types = (enumerate,)
    __slots__ = ("count", "inner", "make_pair")

    def __init__(self, inner: Value, count: int, make_pair: Callable[[list[Value]], Value]) -> None:
        super().__init__()
        self.inner = inner
        self.count = count
        self.make_pair = make_pair

    def next_(self, tr: Tracer) -> Value:
        item = self.inner.next_(tr)
        pair = self.make_pair([tr.constant(self.count), item])
        self.count += 1
        return pair

    def referents(self) -> Iterable[Value]:
        return (self.inner,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(enumerate, (_passed_again(self.inner),), (self.count,))


class ZipIterator(IteratorValue):
    """`zip(*inners, strict=strict)`."""

    python_types = (zip,)
    __slots__ = ("inners", "make_tuple", "strict")

    def __init__(self, inners: Sequence[Value], strict: bool, make_tuple: Callable[[list[Value]], Value]) -> None:
        super().__init__()
        self.inners = list(inners)
        self.strict = strict
        self.make_tuple = make_tuple

    def next_(self, tr: Tracer) -> Value:
        return self.make_tuple(next_row(tr, self.inners, self.strict, "zip"))

    def referents(self) -> Iterable[Value]:
        return self.inners

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_function(zip)
        for inner in self.inners:
            codegen(_passed_again(inner))
        if self.strict:
            codegen.load_const(True)
        codegen.call(len(self.inners) + self.strict, ("strict",) if self.strict else ())


def next_row(tr: Tracer, inners: Sequence[Value], strict: bool, function: str) -> list[Value]:
    """Return the next item of each iterator; at the first end StopIteration, or ValueError if `strict`.

    `function`: the name in the error, of `zip` or `map`.
    """
    if not inners:
        stop(tr)
    items: list[Value] = []
    for position, inner in enumerate(inners):
        item = next_or_none(tr, inner)
        if item is None:
            _ended(tr, inners, strict, function, position)
        items.append(item)
    return items


def _ended(tr: Tracer, inners: Sequence[Value], strict: bool, function: str, position: int) -> NoReturn:
    if strict and position > 0:
        _mismatch(tr, function, position, "shorter")
    if strict:
        for later, inner in enumerate(inners[1:], 1):
            if next_or_none(tr, inner) is not None:
                _mismatch(tr, function, later, "longer")
    stop(tr)


def _mismatch(tr: Tracer, function: str, position: int, word: str) -> NoReturn:
    than = "argument 1" if position == 1 else f"arguments 1-{position}"
    tr.raise_(ValueError, f"{function}() argument {position + 1} is {word} than {than}")


class MapIterator(IteratorValue):
    """`map(function, *inners, strict=strict)`."""

    python_types = (map,)
    __slots__ = ("function", "inners", "strict")

    def __init__(self, function: Value, inners: Sequence[Value], strict: bool = False) -> None:
        super().__init__()
        self.function = function
        self.inners = list(inners)
        self.strict = strict

    def next_(self, tr: Tracer) -> Value:
        return tr.call(self.function, next_row(tr, self.inners, self.strict, "map"), {})

    def referents(self) -> Iterable[Value]:
        return (self.function, *self.inners)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_function(map)
        codegen(self.function)
        for inner in self.inners:
            codegen(_passed_again(inner))
        if self.strict:
            codegen.load_const(True)
        codegen.call(1 + len(self.inners) + self.strict, ("strict",) if self.strict else ())


class FilterIterator(IteratorValue):
    """`filter(function, inner)`; a constant None keeps true items."""

    python_types = (filter,)
    __slots__ = ("function", "inner")

    def __init__(self, function: Value, inner: Value) -> None:
        super().__init__()
        self.function = function
        self.inner = inner

    def next_(self, tr: Tracer) -> Value:
        while True:
            item = self.inner.next_(tr)
            verdict = item if self._keeps_true() else tr.call(self.function, [item], {})
            if verdict.bool_(tr):
                return item

    def _keeps_true(self) -> bool:
        return self.function.is_constant() and self.function.as_constant() in (None, bool)

    def referents(self) -> Iterable[Value]:
        return (self.function, self.inner)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(filter, (self.function, _passed_again(self.inner)))


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
            codegen.push_call(iter, (), ((),))
        else:
            codegen.push_call(iter, (self.function, self.sentinel))


class CountIterator(IteratorValue):
    """`itertools.count(current, step)`."""

    python_types = (itertools.count,)
    __slots__ = ("current", "step")

    def __init__(self, current: Value, step: Value) -> None:
        super().__init__()
        self.current = current
        self.step = step

    def next_(self, tr: Tracer) -> Value:
        item = self.current
        self.current = operations.binary(tr, "+", item, self.step)
        return item

    def unpack(self, tr: Tracer) -> list[Value]:
        self.unsupported("collecting all items of an endless iterator")

    def referents(self) -> Iterable[Value]:
        return (self.current, self.step)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(itertools.count, (self.current, self.step))


class RepeatIterator(IteratorValue):
    """`itertools.repeat(item, left)`; None: for ever."""

    python_types = (itertools.repeat,)
    __slots__ = ("item", "left")

    def __init__(self, item: Value, left: int | None) -> None:
        super().__init__()
        self.item = item
        self.left = left

    def next_(self, tr: Tracer) -> Value:
        if self.left is not None:
            if self.left <= 0:
                stop(tr)
            self.left -= 1
        return self.item

    def unpack(self, tr: Tracer) -> list[Value]:
        if self.left is None:
            self.unsupported("collecting all items of an endless iterator")
        return super().unpack(tr)

    def referents(self) -> Iterable[Value]:
        return (self.item,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(itertools.repeat, (self.item,), () if self.left is None else (self.left,))

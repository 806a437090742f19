"""Builtins about iteration: iter, next, sorted, any, all, and the constructors of iterators."""

from __future__ import annotations

import itertools

from framesmith_dynamo.builtins.registry import between, handles, one
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.containers import FrozenSetValue, TupleValue, index_of, new_list, sorted_items
from framesmith_dynamo.values.holders import type_lookup
from framesmith_dynamo.values.iteration.iterator_adapters import (
    CountIterator,
    EnumerateIterator,
    FilterIterator,
    MapIterator,
    RepeatIterator,
    SentinelIterator,
    ZipIterator,
)
from framesmith_dynamo.values.iteration.iterators import next_or_none, tracked
from framesmith_dynamo.values.objects.classes import ClassValue, constructs


@handles(iter)
def _iter(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    first, *rest = between(tr, "iter", args, kwargs, 1, 2)
    return tracked(tr, SentinelIterator(first, rest[0])) if rest else first.iter_(tr)


@handles(next)
def _next(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    iterator, *rest = between(tr, "next", args, kwargs, 1, 2)
    if not rest:
        return iterator.next_(tr)
    item = next_or_none(tr, iterator)
    return rest[0] if item is None else item


def unordered_items(tr: Tracer, iterable: Value, key: Value | None) -> list[Value]:
    """Items to sort: a set's order does not matter when all its members are different under the order itself."""
    if isinstance(iterable, FrozenSetValue) and (key is None or (key.is_constant() and key.as_constant() is None)):
        members = list(iterable.members.values())
        if all(member.is_constant() for member in members):
            return members
    return iterable.unpack(tr)


@handles(sorted)
def _sorted(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if set(kwargs) - {"key", "reverse"}:
        tr.raise_(TypeError, "sorted() got an unexpected keyword argument")
    iterable = one(tr, "sorted", args, {})
    key = kwargs.get("key")
    return new_list(tr, sorted_items(tr, unordered_items(tr, iterable, key), key, kwargs.get("reverse")))


def quantified(tr: Tracer, iterable: Value, stops_at: bool) -> Value:
    """`any` (stops at true) or `all` (stops at false); takes no more items than needed."""
    if isinstance(iterable, FrozenSetValue):
        return tr.constant(
            any(operations.truth(tr, item) is stops_at for item in iterable.members.values()) is stops_at
        )
    iterator = iterable.iter_(tr)
    while (item := next_or_none(tr, iterator)) is not None:
        if operations.truth(tr, item) is stops_at:
            return tr.constant(stops_at)
    return tr.constant(not stops_at)


@handles(any)
def _any(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return quantified(tr, one(tr, "any", args, kwargs), True)


@handles(all)
def _all(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return quantified(tr, one(tr, "all", args, kwargs), False)


@constructs(range)
def _range(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    bounds = between(tr, "range", args, kwargs, 1, 3)
    for bound in bounds:
        if bound.is_constant() and not isinstance(bound.as_constant(), int):
            name = bound.python_type().__name__
            tr.raise_(TypeError, f"'{name}' object cannot be interpreted as an integer")
    numbers = [index_of(tr, bound) for bound in bounds]
    if len(numbers) == 3 and numbers[2] == 0:
        tr.raise_(ValueError, "range() arg 3 must not be zero")
    return tr.constant(range(*numbers))


@constructs(enumerate)
def _enumerate(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(("iterable", "start"), args, strict=False)) | dict(kwargs)
    if set(given) - {"iterable", "start"} or "iterable" not in given or len(args) > 2:
        tr.raise_(TypeError, "enumerate() takes an iterable and an optional start")
    start = index_of(tr, given["start"]) if "start" in given else 0
    return tracked(tr, EnumerateIterator(given["iterable"].iter_(tr), start, TupleValue))


@constructs(zip)
def _zip(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    if set(kwargs) - {"strict"}:
        tr.raise_(TypeError, "zip() got an unexpected keyword argument")
    strict = "strict" in kwargs and operations.truth(tr, kwargs["strict"])
    return tracked(tr, ZipIterator([arg.iter_(tr) for arg in args], strict, TupleValue))


@constructs(map)
def _map(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    if len(args) < 2 or kwargs:
        tr.raise_(TypeError, "map() must have at least two arguments.")
    return tracked(tr, MapIterator(args[0], [arg.iter_(tr) for arg in args[1:]]))


@constructs(filter)
def _filter(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    function, iterable = between(tr, "filter", args, kwargs, 2, 2)
    return tracked(tr, FilterIterator(function, iterable.iter_(tr)))


@constructs(reversed)
def _reversed(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    value = one(tr, "reversed", args, kwargs)
    own = value.python_type()
    if type_lookup(own, "__reversed__") is not None:
        return value.call_method(tr, "__reversed__", [], {})
    if type_lookup(own, "__getitem__") is None:
        tr.raise_(TypeError, f"'{own.__name__}' object is not reversible")
    return new_list(tr, value.unpack(tr)[::-1]).iter_(tr)


@constructs(itertools.count)
def _count(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(("start", "step"), args, strict=False)) | dict(kwargs)
    return tracked(tr, CountIterator(given.get("start", tr.constant(0)), given.get("step", tr.constant(1))))


@constructs(itertools.repeat)
def _repeat(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(("object", "times"), args, strict=False)) | dict(kwargs)
    times = index_of(tr, given["times"]) if "times" in given else None
    return tracked(tr, RepeatIterator(given["object"], None if times is None else max(0, times)))

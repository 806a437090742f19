"""Builtins about iteration: iter, next, sorted, any, all, and the constructors of iterators."""

from __future__ import annotations

import itertools
import sys

from framesmith_dynamo.polyfills.protocols import reversed_by_index
from framesmith_dynamo.python_behaviour import MAP_KEYWORDS
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import between, handles, named, one
from framesmith_dynamo.values.constants.constant import ConstantValue, fold
from framesmith_dynamo.values.containers import FrozenSetValue, TupleValue, index_of, new_list, sorted_items
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.iteration.consuming import each, listed
from framesmith_dynamo.values.iteration.iterator_adapters import (
    CountIterator,
    EnumerateIterator,
    FilterIterator,
    MapIterator,
    RepeatIterator,
    SentinelIterator,
    ZipIterator,
)
from framesmith_dynamo.values.iteration.iterators import SequenceIterator, next_or_none, tracked
from framesmith_dynamo.values.lookup.static import type_lookup, user_method


@handles(iter)
def _iter(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    first, *rest = between(tr, iter, args, kwargs, 1, 2)
    if rest and type_lookup(first.python_type(), "__call__") is None:
        refuse(tr, iter, args, kwargs)
    return tracked(tr, SentinelIterator(first, rest[0])) if rest else first.iter_(tr)


@handles(next)
def _next(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    iterator, *rest = between(tr, next, args, kwargs, 1, 2)
    if not rest:
        return iterator.next_(tr)
    item = next_or_none(tr, iterator)
    return rest[0] if item is None else item


def unordered_items(tr: Tracer, iterable: Value, key: Value | None) -> list[Value]:
    """Return the items to sort; a set's order is irrelevant if all members differ under the sorting order."""
    held = iterable.builtin_contents() if user_method(iterable.python_type(), "__iter__") is None else iterable
    if isinstance(held, FrozenSetValue) and (key is None or key.is_none()):
        members = list(held.members.values())
        if all(member.can_be_constant() for member in members):
            return members
    return listed(tr, iterable)


@handles(sorted)
def _sorted(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if set(kwargs) - {"key", "reverse"}:
        refuse(tr, sorted, args, kwargs)
    iterable = one(tr, sorted, args, {})
    key = kwargs.get("key")
    return new_list(tr, sorted_items(tr, unordered_items(tr, iterable, key), key, kwargs.get("reverse")))


def quantified(tr: Tracer, iterable: Value, stops_at: bool) -> Value:
    """`any` (stops at true) or `all` (stops at false); takes no more items than needed."""
    if isinstance(iterable, FrozenSetValue):
        return tr.constant(any(item.bool_(tr) is stops_at for item in iterable.members.values()) is stops_at)
    found = any(item.bool_(tr) is stops_at for item in each(tr, iterable))
    return tr.constant(found is stops_at)


@handles(any)
def _any(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return quantified(tr, one(tr, any, args, kwargs), True)


@handles(all)
def _all(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return quantified(tr, one(tr, all, args, kwargs), False)


@handles(range)
def _range(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    bounds = between(tr, range, args, kwargs, 1, 3)
    numbers = [index_of(tr, bound) for bound in bounds]
    if len(numbers) == 3 and numbers[2] == 0:
        tr.raise_(ValueError, "range() arg 3 must not be zero")
    return tr.constant(range(*numbers))


@handles(enumerate)
def _enumerate(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = named(tr, enumerate, args, kwargs, ("iterable", "start"), 1)
    start = index_of(tr, given["start"]) if "start" in given else 0
    return tracked(tr, EnumerateIterator(given["iterable"].iter_(tr), start, TupleValue))


@handles(zip)
def _zip(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if set(kwargs) - {"strict"}:
        refuse(tr, zip, args, kwargs)
    strict = "strict" in kwargs and kwargs["strict"].bool_(tr)
    return tracked(tr, ZipIterator([arg.iter_(tr) for arg in args], strict, TupleValue))


@handles(map)
def _map(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) < 2 or kwargs.keys() - MAP_KEYWORDS:
        refuse(tr, map, args, kwargs)
    strict = "strict" in kwargs and kwargs["strict"].bool_(tr)
    return tracked(tr, MapIterator(args[0], [arg.iter_(tr) for arg in args[1:]], strict))


@handles(filter)
def _filter(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    function, iterable = between(tr, filter, args, kwargs, 2, 2)
    return tracked(tr, FilterIterator(function, iterable.iter_(tr)))


@handles(reversed)
def _reversed(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = one(tr, reversed, args, kwargs)
    own = value.python_type()
    if type_lookup(own, "__reversed__") is not None:
        return value.call_method(tr, "__reversed__", [], {})
    if type_lookup(own, "__getitem__") is None or type_lookup(own, "__len__") is None:
        refuse(tr, reversed, args, kwargs)
    if isinstance(value, TupleValue | ConstantValue):
        return tracked(tr, SequenceIterator(value, value.size_now() - 1, -1))
    return tr.call(tr.constant(reversed_by_index), [value], {})


@handles(itertools.count)
def _count(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = named(tr, itertools.count, args, kwargs, ("start", "step"), 0)
    start, step = given.get("start", tr.constant(0)), given.get("step", tr.constant(1))
    for number in (start, step):
        if all(type_lookup(number.python_type(), name) is None for name in ("__index__", "__float__", "__complex__")):
            refuse(tr, itertools.count, (start, step), {})
    known = start.is_constant() and step.is_constant()
    if known or start.python_type() is bool:  # True counts as 1 for steps of 1
        start = fold(tr, lambda *bounds: next(itertools.count(*bounds)), (start, step))
    return tracked(tr, CountIterator(start, step))


@handles(itertools.repeat)
def _repeat(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = named(tr, itertools.repeat, args, kwargs, ("object", "times"), 1)
    times = index_of(tr, given["times"]) if "times" in given else None
    if times is not None and abs(times) > sys.maxsize:
        refuse(tr, itertools.repeat, (tr.constant(None), given["times"]), {})
    return tracked(tr, RepeatIterator(given["object"], None if times is None else max(0, times)))

"""itertools in Python: the tracer inlines these in place of the C types.

Each takes exactly as many items from its inputs as the original does, in the same order.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from framesmith_dynamo.polyfills.functional import missing

LARGEST = sys.maxsize


def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    for iterable in iterables:
        yield from iterable


def chain_from_iterable(iterable: Iterable[Iterable[Any]], /) -> Iterator[Any]:
    """`itertools.chain.from_iterable`."""
    return chained(iter(iterable))


def chained(iterables: Iterator[Iterable[Any]]) -> Iterator[Any]:
    """Yield the items of all iterables."""
    for iterable in iterables:
        yield from iterable


def accumulate(
    iterable: Iterable[Any], func: Callable[[Any, Any], Any] | None = None, *, initial: Any = None
) -> Iterator[Any]:
    return totals(iter(iterable), func, initial)


def totals(iterator: Iterator[Any], func: Callable[[Any, Any], Any] | None, initial: Any) -> Iterator[Any]:
    """Yield the totals so far."""
    total = initial
    if initial is None:
        for first in iterator:
            total = first
            break
        else:
            return
    yield total
    for item in iterator:
        total = total + item if func is None else func(total, item)
        yield total


def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    return selected_items(zip(data, selectors))  # noqa: B905


def selected_items(pairs: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
    """Yield the first of each pair whose second is true."""
    for item, selected in pairs:
        if selected:
            yield item


def cycle(iterable: Iterable[Any], /) -> Iterator[Any]:
    return repeated(iter(iterable))


def repeated(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the items, then all of them again, for ever."""
    saved = []
    for item in iterator:
        yield item
        saved.append(item)
    while saved:
        yield from saved


def dropwhile(predicate: Callable[[Any], Any], iterable: Iterable[Any], /) -> Iterator[Any]:
    return items_from(predicate, iter(iterable))


def items_from(predicate: Callable[[Any], Any], iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the items from the first one on that the predicate rejects."""
    for item in iterator:
        if not predicate(item):
            yield item
            break
    yield from iterator


def takewhile(predicate: Callable[[Any], Any], iterable: Iterable[Any], /) -> Iterator[Any]:
    return items_up_to(predicate, iter(iterable))


def items_up_to(predicate: Callable[[Any], Any], iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the items before the first one that the predicate rejects."""
    for item in iterator:
        if not predicate(item):
            break
        yield item


def filterfalse(predicate: Callable[[Any], Any] | None, iterable: Iterable[Any], /) -> Iterator[Any]:
    return items_without(predicate, iter(iterable))


def items_without(predicate: Callable[[Any], Any] | None, iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the items that the predicate rejects."""
    for item in iterator:
        if not (item if predicate is None else predicate(item)):
            yield item


def starmap(function: Callable[..., Any], iterable: Iterable[Iterable[Any]], /) -> Iterator[Any]:
    return results(function, iter(iterable))


def results(function: Callable[..., Any], rows: Iterator[Iterable[Any]]) -> Iterator[Any]:
    """Yield the results of the function for each row of arguments."""
    for args in rows:
        yield function(*args)


def pairwise(iterable: Iterable[Any], /) -> Iterator[tuple[Any, Any]]:
    return neighbours(iter(iterable))


def neighbours(iterator: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each item with the next one."""
    for previous in iterator:
        for item in iterator:
            yield previous, item
            previous = item


def batched(iterable: Iterable[Any], n: int) -> Iterator[tuple[Any, ...]]:
    if n < 1:
        raise ValueError("n must be at least one")
    return batches(iter(iterable), n)


def batches(iterator: Iterator[Any], n: int) -> Iterator[tuple[Any, ...]]:
    """Yield tuples of n items."""
    batch: list[Any] = []
    for item in iterator:
        batch.append(item)
        if len(batch) == n:
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)


def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[tuple[Any, ...]]:
    return filled_rows([iter(iterable) for iterable in iterables], fillvalue)


def filled_rows(iterators: list[Iterator[Any] | None], fillvalue: Any) -> Iterator[tuple[Any, ...]]:
    """Yield rows of the iterators' items until the last one has ended."""
    live = len(iterators)
    while live:
        row = []
        for position, iterator in enumerate(iterators):
            item = fillvalue
            if iterator is not None:
                for found in iterator:
                    item = found
                    break
                else:
                    iterators[position] = None
                    live -= 1
                    if not live:
                        return
            row.append(item)
        yield tuple(row)


def islice(iterable: Iterable[Any], first: Any, second: Any = missing, third: Any = None, /) -> Iterator[Any]:
    start, stop = (None, first) if second is missing else (first, second)
    start, stop, step = index_or_none(start), index_or_none(stop), index_or_none(third)
    if stop == -1:
        raise ValueError("Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if (start is not None and start < 0) or (stop is not None and stop < 0):
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if step is not None and step < 1:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return islice_items(iter(iterable), start or 0, stop, step or 1)


def index_or_none(bound: int | None) -> int | None:
    """Return a bound of a slice as an integer; -1, which is invalid, for other objects and numbers too large for C."""
    if bound is None:
        return None
    try:
        index = operator.index(bound)
    except TypeError:
        return -1
    return index if -LARGEST - 1 <= index <= LARGEST else -1


def islice_items(iterator: Iterator[Any], start: int, stop: int | None, step: int) -> Iterator[Any]:
    """Yield the items of an islice: none is taken from `stop` on, but all before it."""
    position = 0
    wanted = start
    while stop is None or position < stop:
        fresh = take(iterator)
        if not fresh:
            return
        if position == wanted:
            yield fresh[0]
            wanted += step
        position += 1


def groupby(iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> Iterator[tuple[Any, Iterator[Any]]]:
    """`itertools.groupby`, for groups that are used before the next one is taken (the documented use)."""
    return groups(iter(iterable), key)


def groups(iterator: Iterator[Any], key: Callable[[Any], Any] | None) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Yield keys with their items."""
    pending: list[Any] = list(take(iterator))
    while pending:
        current = pending[0] if key is None else key(pending[0])
        group = group_items(iterator, pending, current, key)
        yield current, group
        for _ in group:
            pass


def group_items(
    iterator: Iterator[Any], pending: list[Any], current: Any, key: Callable[[Any], Any] | None
) -> Iterator[Any]:
    """Yield the items of one group, until the key changes; the first item of the next group is left in `pending`."""
    while pending:
        yield pending.pop()
        for item in iterator:
            pending.append(item)
            if (item if key is None else key(item)) != current:
                return
            break


def take(iterator: Iterator[Any]) -> list[Any]:
    """Return the next item in a list, which is empty at the end."""
    for item in iterator:
        return [item]
    return []


def tee(iterable: Iterable[Any], n: int = 2, /) -> tuple[Iterator[Any], ...]:
    n = operator.index(n)
    if n < 0:
        raise ValueError("n must be >= 0")
    iterator = iter(iterable)
    queues: list[list[Any]] = [[] for _ in range(n)]
    return tuple(tee_items(iterator, queues, position) for position in range(n))


def tee_items(iterator: Iterator[Any], queues: list[list[Any]], position: int) -> Iterator[Any]:
    """One of the iterators returned by `tee`."""
    mine = queues[position]
    while True:
        if not mine:
            fresh = take(iterator)
            if not fresh:
                return
            for queue in queues:
                queue.append(fresh[0])
        yield mine.pop(0)


# Combinatorics: the inputs are read at once, as by the originals


def product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[tuple[Any, ...]]:
    repeat = operator.index(repeat)
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    pools = [tuple(pool) for pool in iterables] * repeat
    rows: list[tuple[Any, ...]] = [()]
    for pool in pools:
        rows = [(*row, item) for row in rows for item in pool]
    return in_turn(rows)


def in_turn(rows: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows: an iterator of a type other than list's."""
    yield from rows


def permutations(iterable: Iterable[Any], r: int | None = None) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    if r is not None and not isinstance(r, int):
        raise TypeError("Expected int as r")
    size = len(pool) if r is None else r
    if size < 0:
        raise ValueError("r must be non-negative")
    rows: list[tuple[int, ...]] = [()]
    for _ in range(size):
        rows = [(*row, index) for row in rows for index in range(len(pool)) if index not in row]
    return in_turn([tuple([pool[index] for index in row]) for row in rows])


def combinations(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    return chosen(iterable, operator.index(r), 1)


def combinations_with_replacement(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    return chosen(iterable, operator.index(r), 0)


def chosen(iterable: Iterable[Any], r: int, gap: int) -> Iterator[tuple[Any, ...]]:
    """Yield index tuples of length r whose neighbours differ by at least `gap`, as items of the iterable."""
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    rows: list[tuple[int, ...]] = [()]
    for _ in range(r):
        rows = [(*row, index) for row in rows for index in range(row[-1] + gap if row else 0, len(pool))]
    return in_turn([tuple([pool[index] for index in row]) for row in rows])

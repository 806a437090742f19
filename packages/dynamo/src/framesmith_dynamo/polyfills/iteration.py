"""itertools in plain Python: the tracer inlines these in place of the C types.

Each takes exactly as many items from its inputs as the original does, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    """`itertools.chain`."""
    for iterable in iterables:
        yield from iterable


def chain_from_iterable(iterables: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """`itertools.chain.from_iterable`."""
    for iterable in iterables:
        yield from iterable


def accumulate(
    iterable: Iterable[Any], func: Callable[[Any, Any], Any] | None = None, *, initial: Any = None
) -> Iterator[Any]:
    """`itertools.accumulate`."""
    iterator = iter(iterable)
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
    """`itertools.compress`."""
    for item, selected in zip(data, selectors):  # noqa: B905
        if selected:
            yield item


def cycle(iterable: Iterable[Any]) -> Iterator[Any]:
    """`itertools.cycle`."""
    saved = []
    for item in iterable:
        yield item
        saved.append(item)
    while saved:
        yield from saved


def dropwhile(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    """`itertools.dropwhile`."""
    iterator = iter(iterable)
    for item in iterator:
        if not predicate(item):
            yield item
            break
    yield from iterator


def takewhile(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    """`itertools.takewhile`."""
    for item in iterable:
        if not predicate(item):
            break
        yield item


def filterfalse(predicate: Callable[[Any], Any] | None, iterable: Iterable[Any]) -> Iterator[Any]:
    """`itertools.filterfalse`."""
    for item in iterable:
        if not (item if predicate is None else predicate(item)):
            yield item


def starmap(function: Callable[..., Any], iterable: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """`itertools.starmap`."""
    for args in iterable:
        yield function(*args)


def pairwise(iterable: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """`itertools.pairwise`."""
    iterator = iter(iterable)
    for previous in iterator:
        for item in iterator:
            yield previous, item
            previous = item


def batched(iterable: Iterable[Any], n: int) -> Iterator[tuple[Any, ...]]:
    """`itertools.batched`."""
    if n < 1:
        raise ValueError("n must be at least one")
    batch: list[Any] = []
    for item in iterable:
        batch.append(item)
        if len(batch) == n:
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)


def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[tuple[Any, ...]]:
    """`itertools.zip_longest`."""
    iterators: list[Iterator[Any] | None] = [iter(iterable) for iterable in iterables]
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


def islice(iterable: Iterable[Any], *bounds: int | None) -> Iterator[Any]:
    """`itertools.islice`."""
    limits = slice(*bounds)
    start = 0 if limits.start is None else limits.start
    stop = limits.stop
    step = 1 if limits.step is None else limits.step
    if start < 0 or (stop is not None and stop < 0):
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if step < 1:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return islice_items(iter(iterable), start, stop, step)


def islice_items(iterator: Iterator[Any], start: int, stop: int | None, step: int) -> Iterator[Any]:
    """The items of an islice: none is taken at `stop` or behind it, but all before it, those that `step` skips too."""
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
    """`itertools.groupby`, for groups that are used before the next one is asked for (the documented use)."""
    iterator = iter(iterable)
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
    """One group: items until the key changes; the first item of the next group is left in `pending`."""
    while pending:
        yield pending.pop()
        for item in iterator:
            pending.append(item)
            if (item if key is None else key(item)) != current:
                return
            break


def take(iterator: Iterator[Any]) -> list[Any]:
    """The next item in a list, empty at the end."""
    for item in iterator:
        return [item]
    return []


def tee(iterable: Iterable[Any], n: int = 2) -> tuple[Iterator[Any], ...]:
    """`itertools.tee`."""
    iterator = iter(iterable)
    queues: list[list[Any]] = [[] for _ in range(n)]
    return tuple(tee_items(iterator, queues, position) for position in range(n))


def tee_items(iterator: Iterator[Any], queues: list[list[Any]], position: int) -> Iterator[Any]:
    """One of the iterators that `tee` gives."""
    mine = queues[position]
    while True:
        if not mine:
            fresh = take(iterator)
            if not fresh:
                return
            for queue in queues:
                queue.append(fresh[0])
        yield mine.pop(0)


# Combinatorics: the inputs are read at once, as the originals do


def product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[tuple[Any, ...]]:
    """`itertools.product`."""
    pools = [tuple(pool) for pool in iterables] * repeat
    rows: list[tuple[Any, ...]] = [()]
    for pool in pools:
        rows = [(*row, item) for row in rows for item in pool]
    return iter(rows)


def permutations(iterable: Iterable[Any], r: int | None = None) -> Iterator[tuple[Any, ...]]:
    """`itertools.permutations`."""
    pool = tuple(iterable)
    size = len(pool) if r is None else r
    rows: list[tuple[int, ...]] = [()]
    for _ in range(size):
        rows = [(*row, index) for row in rows for index in range(len(pool)) if index not in row]
    return iter([tuple([pool[index] for index in row]) for row in rows])


def combinations(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    """`itertools.combinations`."""
    return chosen(tuple(iterable), r, 1)


def combinations_with_replacement(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    """`itertools.combinations_with_replacement`."""
    return chosen(tuple(iterable), r, 0)


def chosen(pool: tuple[Any, ...], r: int, apart: int) -> Iterator[tuple[Any, ...]]:
    """Index tuples of length r whose neighbours differ by at least `apart`, as items of the pool."""
    rows: list[tuple[int, ...]] = [()]
    for _ in range(r):
        rows = [(*row, index) for row in rows for index in range(row[-1] + apart if row else 0, len(pool))]
    return iter([tuple([pool[index] for index in row]) for row in rows])

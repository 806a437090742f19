"""heapq and bisect in Python, with the comparisons of the C versions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

Order = Callable[[Any, Any], Any]


def sift_down(heap: list[Any], start: int, position: int, before: Order = operator.lt) -> None:
    """Move the item at `position` towards the root until it does not come `before` its parent."""
    item = heap[position]
    while position > start:
        parent = (position - 1) >> 1
        if not before(item, heap[parent]):
            break
        heap[position] = heap[parent]
        position = parent
    heap[position] = item


def sift_up(heap: list[Any], position: int, before: Order = operator.lt) -> None:
    """Let the children that come `before` the others bubble up, then put the item in its place."""
    end, start, item = len(heap), position, heap[position]
    child = 2 * position + 1
    while child < end:
        right = child + 1
        if right < end and not before(heap[child], heap[right]):
            child = right
        heap[position] = heap[child]
        position = child
        child = 2 * position + 1
    heap[position] = item
    sift_down(heap, start, position, before)


def larger(left: Any, right: Any) -> bool:
    """The order of max-heaps."""
    return bool(right < left)


def heappush(heap: list[Any], item: Any, /) -> None:
    heap.append(item)
    sift_down(heap, 0, len(heap) - 1)


def heappop(heap: list[Any], /) -> Any:
    last = heap.pop()
    if not heap:
        return last
    smallest = heap[0]
    heap[0] = last
    sift_up(heap, 0)
    return smallest


def heapify(heap: list[Any], /) -> None:
    for position in reversed(range(len(heap) // 2)):
        sift_up(heap, position)


def heapify_max(heap: list[Any], /) -> None:
    for position in reversed(range(len(heap) // 2)):
        sift_up(heap, position, larger)


def heapreplace_max(heap: list[Any], item: Any, /) -> Any:
    largest = heap[0]
    heap[0] = item
    sift_up(heap, 0, larger)
    return largest


def heappush_max(heap: list[Any], item: Any, /) -> None:
    heap.append(item)
    sift_down(heap, 0, len(heap) - 1, larger)


def heappop_max(heap: list[Any], /) -> Any:
    last = heap.pop()
    if not heap:
        return last
    largest = heap[0]
    heap[0] = last
    sift_up(heap, 0, larger)
    return largest


def heappushpop_max(heap: list[Any], item: Any, /) -> Any:
    if heap and item < heap[0]:
        item, heap[0] = heap[0], item
        sift_up(heap, 0, larger)
    return item


def heapreplace(heap: list[Any], item: Any, /) -> Any:
    smallest = heap[0]
    heap[0] = item
    sift_up(heap, 0)
    return smallest


def heappushpop(heap: list[Any], item: Any, /) -> Any:
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        sift_up(heap, 0)
    return item


def bounds(a: Any, lo: int, hi: int | None) -> tuple[int, int]:
    """Return the bounds of a bisection."""
    lo = operator.index(lo)
    if lo < 0:
        raise ValueError("lo must be non-negative")
    return lo, len(a) if hi is None else hi


def bisect_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable[[Any], Any] | None = None) -> int:
    lo, end = bounds(a, lo, hi)
    while lo < end:
        middle = (lo + end) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            end = middle
        else:
            lo = middle + 1
    return lo


def bisect_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable[[Any], Any] | None = None) -> int:
    lo, end = bounds(a, lo, hi)
    while lo < end:
        middle = (lo + end) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            end = middle
    return lo


def insort_right(
    a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable[[Any], Any] | None = None
) -> None:
    where = bisect_right(a, x if key is None else key(x), lo, hi, key=key)
    a.insert(where, x)


def insort_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable[[Any], Any] | None = None) -> None:
    where = bisect_left(a, x if key is None else key(x), lo, hi, key=key)
    a.insert(where, x)


def count_elements(mapping: dict[Any, int], iterable: Any) -> None:
    """`collections._count_elements`, the loop of `Counter.update`."""
    for item in iterable:
        if type(item).__hash__ is None:
            hash(item)  # raises without the name of a use
        mapping[item] = mapping.get(item, 0) + 1

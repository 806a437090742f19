"""Protocols that C code follows for objects of Python classes, in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from framesmith_dynamo.python_behaviour import NO_CONTAINER


def iterate_by_index(obj: Any) -> Iterator[Any]:
    """`iter(obj)` for a class with `__getitem__` and no `__iter__`."""
    index = 0
    while True:
        try:
            item = obj[index]
        except (IndexError, StopIteration):
            return
        yield item
        index += 1


def contains_by_iteration(obj: Any, wanted: Any) -> bool:
    """`wanted in obj` for a class without `__contains__`."""
    try:
        items = iter(obj)
    except TypeError:
        items = None
    if items is None:  # raised here: the error has no context
        raise TypeError(f"argument of type '{type(obj).__name__}'{NO_CONTAINER}")
    return any(item is wanted or item == wanted for item in items)


def reversed_by_index(obj: Any) -> Iterator[Any]:
    """`reversed(obj)` for a class with `__len__` and `__getitem__`."""
    return items_backwards(obj, len(obj))


def items_backwards(obj: Any, size: int) -> Iterator[Any]:
    """Yield the items of `obj` from the last of `size` to the first."""
    for index in range(size - 1, -1, -1):
        try:
            item = obj[index]
        except (IndexError, StopIteration):
            return
        yield item

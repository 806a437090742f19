"""Protocols that C code follows for objects of Python classes, written out to be inlined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def iterate_by_index(obj: Any) -> Iterator[Any]:
    """What `iter(obj)` gives for a class with `__getitem__` and no `__iter__`."""
    index = 0
    while True:
        try:
            item = obj[index]
        except (IndexError, StopIteration):
            return
        yield item
        index += 1


def contains_by_iteration(obj: Any, wanted: Any) -> bool:
    """What `wanted in obj` means for a class without `__contains__`."""
    return any(item is wanted or item == wanted for item in obj)

"""functools and operator callables in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def missing() -> None:
    """Stands for an argument that is not given."""


def reduce(function: Callable[[Any, Any], Any], iterable: Iterable[Any], initial: Any = missing, /) -> Any:
    iterator = iter(iterable)
    total = initial
    if initial is missing:
        for first in iterator:
            total = first
            break
        else:
            raise TypeError("reduce() of empty iterable with no initial value")
    for item in iterator:
        total = function(total, item)
    return total


class SortKey:
    """The wrapper of an item by `functools.cmp_to_key`."""

    def __init__(self, compare: Callable[[Any, Any], int], obj: Any) -> None:
        self.compare = compare
        self.obj = obj

    def __lt__(self, other: SortKey) -> bool:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: SortKey) -> bool:
        return self.compare(self.obj, other.obj) > 0

    def __le__(self, other: SortKey) -> bool:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: SortKey) -> bool:
        return self.compare(self.obj, other.obj) >= 0


def cmp_to_key(mycmp: Callable[[Any, Any], int]) -> Callable[[Any], SortKey]:

    def key(obj: Any) -> SortKey:
        return SortKey(mycmp, obj)

    return key


def itemgetter(item: Any, /, *items: Any) -> Callable[[Any], Any]:
    if not items:
        return lambda obj: obj[item]
    return lambda obj: tuple([obj[key] for key in (item, *items)])


def resolve(obj: Any, path: str) -> Any:
    """Follow a dotted path of attributes."""
    for name in path.split("."):
        obj = getattr(obj, name)
    return obj


def attrgetter(attr: str, /, *attrs: str) -> Callable[[Any], Any]:
    if not attrs:
        return lambda obj: resolve(obj, attr)
    return lambda obj: tuple([resolve(obj, path) for path in (attr, *attrs)])


def methodcaller(name: str, /, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda obj: getattr(obj, name)(*args, **kwargs)


def count_of(items: Iterable[Any], value: Any, /) -> int:
    """`operator.countOf`."""
    count = 0
    for item in items:
        if item is value or item == value:
            count += 1
    return count


def index_of(items: Iterable[Any], value: Any, /) -> int:
    """`operator.indexOf`."""
    for index, item in enumerate(items):
        if item is value or item == value:
            return index
    raise ValueError("sequence.index(x): x not in sequence")


def prod(iterable: Iterable[Any], /, *, start: Any = 1) -> Any:
    for item in iterable:
        start = start * item
    return start

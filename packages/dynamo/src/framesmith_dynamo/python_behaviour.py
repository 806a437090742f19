"""Observable behaviour of C code that differs between versions of Python, found by trying at import."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final


class _Sized:
    """An iterable of nothing that notes when it is asked for its length."""

    def __init__(self) -> None:
        self.was_asked = False

    def __len__(self) -> int:
        self.was_asked = True
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Stored(defaultdict[Any, Any]):
    """A defaultdict that notes when its own method stores an item."""

    was_called = False

    def __setitem__(self, key: Any, value: Any) -> None:
        self.was_called = True


class _Dropped:
    """An object that notes its end in a list."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def __del__(self) -> None:
        self.log.append(self.name)


def _tuple_asks() -> bool:
    sized = _Sized()
    tuple(sized)
    return sized.was_asked


def _missing_stores() -> bool:
    stored = _Stored(int)
    stored[0]
    return stored.was_called


def _drops_first_slot_first() -> bool:
    log: list[str] = []

    def leave() -> None:
        first = _Dropped("first", log)
        second = _Dropped("second", log)
        assert first is not second

    leave()
    return log == ["first", "second"]


def _refusal_of_in() -> str:
    try:
        0 in object()  # type: ignore[operator]  # noqa: B015
    except TypeError as error:
        return str(error).partition("'object'")[2]
    raise AssertionError("an object contains something")


def _index_names_item() -> bool:
    try:
        [1].index(0)
    except ValueError as error:
        return "0" in str(error)
    raise AssertionError("a list has what is not in it")


def _shared_integers() -> range:
    low, high = 0, 1
    while int(str(low - 1)) is int(str(low - 1)):
        low -= 1
    while int(str(high)) is int(str(high)):
        high += 1
    return range(low, high)


def _slice_is_bounded_late() -> bool:
    items = [0]

    def grow() -> Iterator[int]:
        items.append(1)
        yield 2

    items[5:] = grow()
    return items == [0, 1, 2]


def _map_keywords() -> frozenset[str]:
    try:
        map(abs, (), strict=True)  # type: ignore[call-overload]
    except TypeError:
        return frozenset()
    return frozenset({"strict"})


def _list_extends_itself_as_stored() -> bool:
    class Other(list[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    items = Other([1])
    items.extend(items)
    return len(items) == 2


#: The integers of which CPython has one object each.
SHARED_INTEGERS: Final = _shared_integers()
#: Whether `a[i:j] = iterable` applies the bounds to the list as it is after the items have been taken.
BOUNDS_SLICE_LATE: Final = _slice_is_bounded_late()
#: Whether `a.extend(a)` takes the items that lie in the list, and not those that the `__iter__` of its class answers.
EXTENDS_ITSELF_AS_STORED: Final = _list_extends_itself_as_stored()
#: Whether the error of `index` of lists and deques shows the item that is missing.
INDEX_NAMES_ITEM: Final = _index_names_item()
#: Whether `tuple(iterable)` asks for a length, as `list(iterable)` does.
TUPLE_ASKS_LENGTH: Final = _tuple_asks()
#: Whether a defaultdict stores a new item by `__setitem__`, which its class may override; else as `setdefault` does.
MISSING_SETS_ITEM: Final = _missing_stores()
#: Whether a frame that returns drops its variables in the order of their slots; else in the opposite order.
DROPS_FIRST_SLOT_FIRST: Final = _drops_first_slot_first()
#: The end of the error of `in`, after the name of a class that has no members.
NO_CONTAINER: Final = _refusal_of_in()
#: The keywords of `map`: it may be strict as `zip` is, which depends on the Python version.
MAP_KEYWORDS: Final = _map_keywords()

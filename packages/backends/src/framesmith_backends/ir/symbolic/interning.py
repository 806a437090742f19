"""Interning of frozen IR nodes: equal construction gives the same object, so that identity is equality."""

from __future__ import annotations

from inspect import get_annotations
from threading import Lock
from typing import Any, Self, TypeVar, dataclass_transform
from weakref import WeakValueDictionary

N = TypeVar("N", bound="Node")
_LOCK = Lock()


class Node:
    """A frozen, interned node: a class decorated with `interned`, or one with `__slots__` that uses `make`."""

    __slots__ = ("__weakref__",)
    _table: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()

    def __new__(cls, *fields: Any) -> Self:
        return make(cls, *fields)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: make a new node instead of setting {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return make, (type(self), *(getattr(self, name) for name in type(self).__slots__))


def make(cls: type[N], *fields: Any) -> N:
    # Types belong to the key: 1, 1.0 and True are equal to each other but are different constants,
    # and so are 0.0 and -0.0, which is why floats go in by their text.
    key: tuple[Any, ...] = (cls, *fields)
    for f in fields:
        if isinstance(f, (float, bool)):
            key = (cls, *[(type(f), repr(f)) if isinstance(f, (float, bool)) else f for f in fields])
            break
    found = Node._table.get(key)
    return found if found is not None else _add(key, cls, fields)


def _add(key: tuple[Any, ...], cls: type[N], fields: tuple[Any, ...]) -> N:
    # Two threads that compile at once must get one node, since nodes are compared by identity.
    with _LOCK:
        found = Node._table.get(key)
        if found is None:
            found = object.__new__(cls)
            for name, value in zip(cls.__slots__, fields, strict=True):
                object.__setattr__(found, name, value)
            Node._table[key] = found
    return found


@dataclass_transform(frozen_default=True)
def interned(cls: type[N]) -> type[N]:
    """Return the class with its annotations as its fields, which are what it is made from, in their order."""
    space = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    made: Any = type(cls.__name__, cls.__bases__, {**space, "__slots__": tuple(get_annotations(cls))})
    return made  # type: ignore[no-any-return]

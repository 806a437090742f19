"""Functions that write the contents of containers: one row per builtin type.

They are methods of the builtin types: the tracer has interpreted overrides in subclasses, which must not run again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ContentsRow:
    """Functions for one type: `clear(obj)` empties it, `fill(empty, contents)` fills it.

    Mappings, lists and sets can also write and delete single items; a member of a set is key and value in one.
    """

    clear: Callable[[Any], object]
    fill: Callable[[Any, Any], object]
    set_item: Callable[[Any, Any, Any], object] | None = None
    del_item: Callable[[Any, Any], object] | None = None


def fill_ordered(target: OrderedDict[Any, Any], contents: Mapping[Any, Any]) -> None:
    """Store items in order without a subclass's `__setitem__`, which `OrderedDict.update` would call."""
    for key, value in contents.items():
        OrderedDict.__setitem__(target, key, value)


def add_member(target: set[Any], key: object, value: object) -> None:
    set.add(target, key)


ROWS: dict[type, ContentsRow] = {
    list: ContentsRow(list.clear, list.extend, list.__setitem__, list.__delitem__),
    dict: ContentsRow(dict.clear, dict.update, dict.__setitem__, dict.__delitem__),
    OrderedDict: ContentsRow(OrderedDict.clear, fill_ordered, OrderedDict.__setitem__, OrderedDict.__delitem__),
    set: ContentsRow(set.clear, set.update, add_member, set.discard),
    deque: ContentsRow(deque.clear, deque.extend),
    bytearray: ContentsRow(bytearray.clear, bytearray.extend),
}


def row_for(cls: type) -> ContentsRow:
    """The row of a builtin container type. Raises TypeError for other types."""
    row = ROWS.get(cls)
    if row is None:
        known = ", ".join(sorted(known.__name__ for known in ROWS))
        raise TypeError(f"contents_type() must be one of {known}, not {cls.__qualname__}")
    return row

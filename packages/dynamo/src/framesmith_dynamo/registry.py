"""Registration in the tables of handlers: a decorator that rejects a key taken already.

The README lists the table for each kind of extension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from framesmith_guards.needs import is_missing

Key = TypeVar("Key")
Row = TypeVar("Row")


def register(table: dict[Key, Row], *keys: Key) -> Callable[[Row], Row]:
    """Return a decorator that enters a row under each of the keys. It raises ValueError for a key that is taken.

    Keys that stand in for objects missing in this release of torch are ignored.
    """

    def enter(row: Row) -> Row:
        for key in keys:
            if is_missing(key):
                continue
            if key in table:
                raise ValueError(f"{key!r} is registered already: {table[key]!r}")
            table[key] = row
        return row

    return enter

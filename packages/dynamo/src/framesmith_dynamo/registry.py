"""How the tables of handlers are filled: a decorator enters a function under its keys, and no key twice.

Which table takes what is in the package's README.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from framesmith_guards.needs import is_missing

Key = TypeVar("Key")
Row = TypeVar("Row")


def register(table: dict[Key, Row], *keys: Key) -> Callable[[Row], Row]:
    """A decorator that enters a row under each of the keys. It raises ValueError for one that is taken.

    Keys that are stand-ins, for what this release of torch does not have, are left out.
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

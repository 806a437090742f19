"""The table of the running interpreter. No other module asks for the version."""

from __future__ import annotations

import sys
from typing import Final

from framesmith_bytecode.cpython.version_table import TABLES, VersionTable


def _running_table() -> VersionTable:
    version = (sys.version_info.major, sys.version_info.minor)
    if version not in TABLES:
        known = ", ".join(f"{major}.{minor}" for major, minor in TABLES)
        raise ImportError(f"framesmith_bytecode knows CPython {known}; this is {version[0]}.{version[1]}")
    return TABLES[version]


TABLE: Final = _running_table()

#: The NULL of a plain call is under the callable (True) or above it (False). See "NULL slots" in the README.
NULL_FIRST: Final = TABLE.null_first
#: Slots in which BEFORE_WITH leaves the exit: 1, or 2 with its self or NULL above it.
EXIT_SLOTS: Final = TABLE.exit_slots
#: Slots of an iterator in a loop: 1, or 2 with NULL or an index above it.
ITERATOR_SLOTS: Final = TABLE.iterator_slots

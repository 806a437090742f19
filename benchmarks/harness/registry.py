"""Types and selection of rows, shared by the registries of models and kernels. Needs no torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Protocol, TypeVar

#: The types that rows are measured in, each where it says so.
TYPES = ("float32", "bfloat16", "float64", "complex64", "int64")


class Listed(Protocol):
    """A row of a registry."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...


Entry = TypeVar("Entry", bound=Listed)


def matching(rows: Sequence[Entry], pattern: str, what: str) -> list[Entry]:
    """The rows whose name or kind matches a pattern of the shell; none is an error that lists the names."""
    found = [row for row in rows if fnmatch.fnmatch(row.name, pattern) or fnmatch.fnmatch(row.kind, pattern)]
    if not found:
        raise ValueError(f"no {what} matches {pattern!r}; there are: {', '.join(row.name for row in rows)}")
    return found

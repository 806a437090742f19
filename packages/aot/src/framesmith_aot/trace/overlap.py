"""Keeps in-place changes away from tensors whose elements share memory (expanded ones).

Functionalisation undoes `expand` by adding differences, which is not exact, and wrong where the change
goes to all copies of an element at once.
"""

from __future__ import annotations

from typing import Any

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.trace import functional
from framesmith_aten.layouts import overlaps_itself, storage_id


class Overlaps:
    """Remembers which memory has been shown through an expanded view."""

    def __init__(self) -> None:
        self._storages: set[int] = set()

    def note(self, value: Any) -> None:
        """Takes in a result."""
        if functional.is_functional(value) and overlaps_itself(value):
            self._storages.add(storage_id(value))

    def check(self, value: Any, what: str) -> None:
        """Refuses a change of `value` that may have to go through an expanded view. Raises AotUnsupported."""
        if not functional.is_functional(value):
            return
        shown = value._base is not None and storage_id(value) in self._storages
        if shown or overlaps_itself(value):
            raise AotUnsupported("overlapping-mutation", what, "it changes memory that an expanded view shows")

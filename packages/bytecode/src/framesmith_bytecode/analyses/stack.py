"""What is known of the value stack before every instruction: `Depths`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from framesmith_bytecode.analyses.slots import CELL, NULL, Kind, Others, slots
from framesmith_bytecode.analyses.spans import Span
from framesmith_bytecode.model.bytecode import Label

NOWHERE: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class Depths:
    """`before[i]`: stack depth before item i, None where no path leads; `deepest`: the most at any time; `regions`:
    depth of each region that is entered, by its index; `others`: the slots before each item that hold something else
    than an object (see slots.py); `raw`: the cell variables whose slot may hold something else than their cell before
    each item, because an inlined comprehension (PEP 709) uses it (no list where none ever does)."""

    before: list[int | None]
    deepest: int
    regions: dict[int, int]
    labels: dict[Label, int]
    spans: list[Span]
    others: list[Others] = field(default_factory=list)
    raw: list[frozenset[str]] = field(default_factory=list)

    def raw_at(self, index: int) -> frozenset[str]:
        """Cell and free variables that are not in place before item `index`."""
        return self.raw[index] if self.raw else NOWHERE

    def stores_null(self, index: int) -> bool:
        """May the value that item `index`, a store, takes from the stack be NULL?"""
        others, depth = self.others[index], self.before[index]
        return others is not None and depth is not None and others[0] == depth - 1 and bool(others[1] & NULL)

    def restores(self, index: int) -> bool:
        """May item `index`, a store, give back what a comprehension took out of the slot?"""
        others, depth = self.others[index], self.before[index]
        return others is not None and depth is not None and others[0] == depth - 1 and bool(others[1] & (NULL | CELL))

    def kinds(self, index: int) -> list[Kind]:
        """What the slots hold before item `index`, bottom first; an item that no path leads to has none."""
        return slots(self.others[index], 0, self.before[index] or 0)

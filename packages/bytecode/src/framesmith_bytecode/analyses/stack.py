"""Depth and kinds of the value stack before every instruction: `Depths`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from framesmith_bytecode.analyses.slots import CELL, NULL, Kind, Others, slots
from framesmith_bytecode.analyses.spans import Span
from framesmith_bytecode.model.bytecode import Label

NOWHERE: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class Depths:
    """`before[i]`: stack depth before item i, None if unreachable; `deepest`: the maximum; `regions`: depth
    of each reachable region, by its index; `others`: the slots before each item that are not objects (see slots.py);
    `raw`: the cell variables whose slot may hold another object than their cell before each item, because an inlined
    comprehension (PEP 709) uses it (empty if none does)."""

    before: list[int | None]
    deepest: int
    regions: dict[int, int]
    labels: dict[Label, int]
    spans: list[Span]
    others: list[Others] = field(default_factory=list)
    raw: list[frozenset[str]] = field(default_factory=list)

    def raw_at(self, index: int) -> frozenset[str]:
        """Cell and free variables whose cell may not be in its slot before item `index`."""
        return self.raw[index] if self.raw else NOWHERE

    def stores_null(self, index: int) -> bool:
        """Whether the store at item `index` may pop NULL."""
        others, depth = self.others[index], self.before[index]
        return others is not None and depth is not None and others[0] == depth - 1 and bool(others[1] & NULL)

    def restores(self, index: int) -> bool:
        """Whether the store at item `index` may restore a slot that a comprehension has used."""
        others, depth = self.others[index], self.before[index]
        return others is not None and depth is not None and others[0] == depth - 1 and bool(others[1] & (NULL | CELL))

    def kinds(self, index: int) -> list[Kind]:
        """Kinds of the slots before item `index`, bottom first; empty if it is unreachable."""
        return slots(self.others[index], 0, self.before[index] or 0)

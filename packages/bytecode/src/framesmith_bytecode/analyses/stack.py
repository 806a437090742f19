"""Depth and kinds of the value stack before every instruction: `StackStates`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from framesmith_bytecode.analyses.slots import CELL, NULL, Kind, NonObjectSlots, slots
from framesmith_bytecode.analyses.spans import Span
from framesmith_bytecode.model.bytecode import Label

NOWHERE: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class StackStates:
    """`before[i]`: stack depth before item i, None if unreachable; `deepest`: the maximum; `regions`: depth
    of each reachable region, by its index; `non_object_slots`: the slots before each item that are not objects (see
    slots.py); `displaced_cells`: the cell variables whose slot may hold another object than their cell before each
    item, because an inlined comprehension (PEP 709) uses it (empty if none does)."""

    before: list[int | None]
    deepest: int
    regions: dict[int, int]
    labels: dict[Label, int]
    spans: list[Span]
    non_object_slots: list[NonObjectSlots] = field(default_factory=list)
    displaced_cells: list[frozenset[str]] = field(default_factory=list)

    def displaced_cells_at(self, index: int) -> frozenset[str]:
        """Cell and free variables whose cell may not be in its slot before item `index`."""
        return self.displaced_cells[index] if self.displaced_cells else NOWHERE

    def stores_null(self, index: int) -> bool:
        """Whether the store at item `index` may pop NULL."""
        others, depth = self.non_object_slots[index], self.before[index]
        return others is not None and depth is not None and others[0] == depth - 1 and bool(others[1] & NULL)

    def restores(self, index: int) -> bool:
        """Whether the store at item `index` may restore a slot that a comprehension has used."""
        others, depth = self.non_object_slots[index], self.before[index]
        return others is not None and depth is not None and others[0] == depth - 1 and bool(others[1] & (NULL | CELL))

    def kinds(self, index: int) -> list[Kind]:
        """Kinds of the slots before item `index`, bottom first; empty if it is unreachable."""
        return slots(self.non_object_slots[index], 0, self.before[index] or 0)

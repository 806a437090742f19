"""What is known of the value stack before every instruction (`Depths`), and the places that instructions lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from framesmith_bytecode.exception_table import Span, innermost
from framesmith_bytecode.model import Bytecode, Item, Label
from framesmith_bytecode.slots import CELL, NULL, Kind, Others, slots

NOWHERE: Final[frozenset[str]] = frozenset()


class BytecodeError(ValueError):
    """A `Bytecode` that no interpreter should see; the message names the instruction."""


def describe(items: list[Item], index: int) -> str:
    """Words for one item of an instruction list, for messages."""
    if index >= len(items):
        return "the end of the instructions"
    item = items[index]
    if isinstance(item, Label):
        return f"label at item {index}"
    line = f", line {item.lineno}" if item.lineno is not None else ""
    arg = "" if item.arg is None or isinstance(item.arg, Label) else f" {item.arg!r:.60}"
    return f"item {index} ({item.op}{arg}{line})"


def label_indices(bytecode: Bytecode) -> dict[Label, int]:
    """Index of every label in the instruction list; a label placed twice is an error."""
    found: dict[Label, int] = {}
    for index, item in enumerate(bytecode.instructions):
        if isinstance(item, Label):
            if item in found:
                raise BytecodeError(f"{bytecode.name}: the same label is placed at items {found[item]} and {index}")
            found[item] = index
    return found


def region_spans(bytecode: Bytecode, labels: Mapping[Label, int]) -> list[Span]:
    """The regions as disjoint spans of item indices; `Span.key` indexes `bytecode.regions`."""
    spans = []
    for key, region in enumerate(bytecode.regions):
        for part, label in (("start", region.start), ("end", region.end), ("handler", region.handler)):
            if label not in labels:
                raise BytecodeError(f"{bytecode.name}: the {part} label of region {key} is not in the instructions")
        if labels[region.start] > labels[region.end]:
            raise BytecodeError(f"{bytecode.name}: region {key} ends (item {labels[region.end]}) before it starts")
        spans.append(Span(labels[region.start], labels[region.end], key))
    return innermost(spans)


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


class _NeedsTexts(Exception):
    """The walk met an operation that trusts a constant to be a string: strings have to be followed, too."""

"""Indices of labels and spans of regions, and descriptions of items for `BytecodeError`s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from framesmith_bytecode.model.bytecode import Bytecode, Item, Label


class BytecodeError(ValueError):
    """A `Bytecode` that cannot run safely; the message names the instruction."""


def describe(items: list[Item], index: int) -> str:
    """Description of one item of an instruction list, for messages."""
    if index >= len(items):
        return "the end of the instructions"
    item = items[index]
    if isinstance(item, Label):
        return f"label at item {index}"
    line = f", line {item.lineno}" if item.lineno is not None else ""
    arg = "" if item.arg is None or isinstance(item.arg, Label) else f" {item.arg!r:.60}"
    return f"item {index} ({item.op}{arg}{line})"


def label_indices(bytecode: Bytecode) -> dict[Label, int]:
    """Index of every label in the instruction list; a label defined twice is an error."""
    found: dict[Label, int] = {}
    for index, item in enumerate(bytecode.instructions):
        if isinstance(item, Label):
            if item in found:
                raise BytecodeError(f"{bytecode.name}: the same label is placed at items {found[item]} and {index}")
            found[item] = index
    return found


class Span(NamedTuple):
    """One region as a half-open range of instruction indices; `key` identifies the region."""

    start: int
    end: int
    key: int


def innermost(spans: Sequence[Span]) -> list[Span]:
    """Sorted disjoint spans: for each index, the innermost of the given (possibly nested) spans.

    The later start wins; of equal starts the earlier end; of equal spans the later in the list.
    """
    ordered = sorted((s for s in spans if s.start < s.end), key=lambda s: (s.start, -s.end, s.key))
    if all(a.end <= b.start for a, b in pairwise(ordered)):
        return ordered
    edges = sorted({edge for span in ordered for edge in (span.start, span.end)})
    out: list[Span] = []
    for left, right in pairwise(edges):
        covering = [span for span in ordered if span.start <= left and right <= span.end]
        if not covering:
            continue
        key = covering[-1].key
        if out and out[-1].key == key and out[-1].end == left:
            out[-1] = Span(out[-1].start, right, key)
        else:
            out.append(Span(left, right, key))
    return out


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

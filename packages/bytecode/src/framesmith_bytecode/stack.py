"""Value-stack depth before every instruction, by walking all paths: `stack_depths`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from framesmith_bytecode.exception_table import Span, innermost
from framesmith_bytecode.model import Bytecode, Instr, Item, Label, Region
from framesmith_bytecode.ops import OPS, pops, pushes, required_depth


class BytecodeError(ValueError):
    """A `Bytecode` that no interpreter should see; the message names the instruction."""


# op -> (slots required, net effect) for operations whose effect does not depend on the operand
_FIXED: Final[Mapping[str, tuple[int, int]]] = {
    name: (required_depth(name, None), pushes(name, None) - pops(name, None))
    for name, row in OPS.items()
    if isinstance(row.pops, int) and isinstance(row.pushes, int) and isinstance(row.peeks, int)
}
# the same for operations that only go on to the next instruction: most of all instructions
_STRAIGHT: Final = {name: effect for name, effect in _FIXED.items() if OPS[name].flow == "next"}
_ENDS: Final = frozenset(name for name, row in OPS.items() if row.flow in ("return", "raise"))
_JUMPS: Final = frozenset(name for name, row in OPS.items() if row.flow == "jump")
_BRANCHES: Final[Mapping[str, int]] = {
    name: row.jump_pushes - pops(name, None) for name, row in OPS.items() if row.flow == "branch"
}


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
        spans.append(Span(labels[region.start], labels[region.end], key))
    return innermost(spans)


@dataclass(slots=True)
class Depths:
    """`before[i]`: stack depth before item i, None where no path leads; `deepest`: the most at any time; `regions`:
    depth of each region that is entered, by its index."""

    before: list[int | None]
    deepest: int
    regions: dict[int, int]
    labels: dict[Label, int]
    spans: list[Span]


_NEVER: Final = 1 << 62  # deeper than any stack


class _Walk:
    def __init__(self, bytecode: Bytecode) -> None:
        self.bytecode = bytecode
        self.items = bytecode.instructions
        self.labels = label_indices(bytecode)
        self.spans = region_spans(bytecode, self.labels)
        self.before: list[int | None] = [None] * len(self.items)
        self.deepest = 0
        self.pending: list[tuple[int, int]] = [(0, 0)]
        self.regions: dict[int, int] = {}
        self.span_at: dict[int, int] = {}
        for span in self.spans:
            for index in range(span.start, span.end):
                self.span_at[index] = span.key

    def fail(self, index: int, problem: str) -> BytecodeError:
        return BytecodeError(f"{self.bytecode.name}: {describe(self.items, index)}: {problem}")

    def target(self, index: int, label: Label) -> int:
        try:
            return self.labels[label]
        except KeyError:
            raise self.fail(index, "its label is not in the instructions") from None

    def join(self, index: int, depth: int, origin: int) -> None:
        """Send a path to `index`, which must agree with earlier ones about the depth."""
        if index >= len(self.items):
            raise self.fail(origin, "control runs off the end")
        known = self.before[index]
        if known is None:
            self.pending.append((index, depth))
        elif known != depth:
            source = describe(self.items, origin)
            raise self.fail(index, f"reached with stack depth {known} and, from {source}, {depth}")

    def enter_region(self, index: int, depth: int) -> None:
        key = self.span_at[index]
        region: Region = self.bytecode.regions[key]
        known = self.regions.get(key)
        if known is None:
            known = self.regions[key] = depth if region.depth is None else region.depth
            entry = known + region.lasti + 1
            self.deepest = max(self.deepest, entry)
            self.join(self.labels[region.handler], entry, index)
        if depth < known:
            raise self.fail(index, f"stack depth {depth} inside a region whose handler wants {known}")

    def step(self, index: int, item: Instr, depth: int) -> int | None:
        """Depth after the instruction on the way to the next one, None if there is no such way."""
        op, arg, _ = item
        fixed = _FIXED.get(op)
        if fixed is None:
            needed, net = required_depth(op, arg), pushes(op, arg) - pops(op, arg)
        else:
            needed, net = fixed
        if depth < needed:
            raise self.fail(index, f"needs {needed} values on the stack, there are {depth}")
        if op in _BRANCHES:
            self.join(self.target(index, arg), depth + _BRANCHES[op], index)
        elif op in _JUMPS:
            self.join(self.target(index, arg), depth, index)
            return None
        elif op in _ENDS:
            return None
        return depth + net

    def follow(self, index: int, depth: int) -> None:
        """Walk straight on from `index` until a path ends or meets one already walked."""
        items, before, span_at, regions, deepest = self.items, self.before, self.span_at, self.regions, self.deepest
        size = len(items)
        while index < size and before[index] is None:
            before[index] = depth
            item = items[index]
            if not isinstance(item, Label):
                if span_at and (key := span_at.get(index)) is not None and depth < regions.get(key, _NEVER):
                    self.enter_region(index, depth)
                effect = _STRAIGHT.get(item[0])
                if effect is not None and depth >= effect[0]:
                    depth += effect[1]
                else:
                    after = self.step(index, item, depth)
                    if after is None:
                        break
                    depth = after
                if depth > deepest:
                    deepest = depth
            index += 1
        else:
            if index >= size:
                raise self.fail(index, "control runs off the end")
            if before[index] != depth:
                raise self.fail(index, f"reached with stack depths {before[index]} and {depth}")
        self.deepest = max(deepest, self.deepest)


def stack_depths(bytecode: Bytecode) -> Depths:
    """Depths of the whole function.

    Raises `BytecodeError` for a missing label, an underflow, paths that disagree, or control running off the end.
    """
    walk = _Walk(bytecode)
    if not bytecode.instructions:
        raise walk.fail(0, "control runs off the end")
    while walk.pending:
        index, depth = walk.pending.pop()
        known = walk.before[index]
        if known is None:
            walk.follow(index, depth)
        elif known != depth:
            raise walk.fail(index, f"reached with stack depths {known} and {depth}")
    return Depths(walk.before, walk.deepest, walk.regions, walk.labels, walk.spans)

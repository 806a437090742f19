"""Basic blocks of a function and the edges between them: `control_flow`."""

from __future__ import annotations

from dataclasses import dataclass, field

from framesmith_bytecode.analyses.header import check_readable
from framesmith_bytecode.analyses.spans import region_spans
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Label
from framesmith_bytecode.model.ops import OPS


@dataclass(slots=True)
class Block:
    """Items [start, end): entered only at the start, left only at the end (or by an exception).

    Edges are indices of blocks: `falls_to` the next one, `jumps_to` the branch target, `raises_to` the handlers.
    """

    start: int
    end: int
    falls_to: int | None = None
    jumps_to: int | None = None
    raises_to: list[int] = field(default_factory=list)

    @property
    def successors(self) -> list[int]:
        """All successors."""
        ways = [way for way in (self.falls_to, self.jumps_to) if way is not None]
        return list(dict.fromkeys(ways + self.raises_to))


def _leaders(bytecode: Bytecode) -> list[int]:
    starts = {0}
    for index, item in enumerate(bytecode.instructions):
        if isinstance(item, Label):
            if index and not isinstance(bytecode.instructions[index - 1], Label):
                starts.add(index)
        elif OPS[item.op].flow != "next":
            starts.add(index + 1)
    return sorted(start for start in starts if start < len(bytecode.instructions))


def control_flow(bytecode: Bytecode) -> list[Block]:
    """Blocks in order of their instructions; block 0 is the entry. Raises `BytecodeError` for missing labels."""
    labels = check_readable(bytecode, "control_flow")
    starts = _leaders(bytecode)
    ends = [*starts[1:], len(bytecode.instructions)]
    blocks = [Block(start, end) for start, end in zip(starts, ends, strict=True)]
    block_of = {index: number for number, block in enumerate(blocks) for index in range(block.start, block.end)}
    for number, block in enumerate(blocks):
        last = bytecode.instructions[block.end - 1]
        flow = OPS[last.op].flow if isinstance(last, Instr) else "next"
        if flow in ("jump", "branch") and isinstance(last, Instr):
            block.jumps_to = block_of.get(labels[last.arg])
        if flow in ("next", "branch") and number + 1 < len(blocks):
            block.falls_to = number + 1
    for span in region_spans(bytecode, labels):
        handler = block_of[labels[bytecode.regions[span.key].handler]]
        for block in blocks:
            if block.start < span.end and span.start < block.end and handler not in block.raises_to:
                block.raises_to.append(handler)
    return blocks


def reachable(blocks: list[Block], entries: list[int]) -> set[int]:
    """Blocks reachable from the given ones, themselves included."""
    seen = set(entries)
    pending = list(entries)
    while pending:
        for successor in blocks[pending.pop()].successors:
            if successor not in seen:
                seen.add(successor)
                pending.append(successor)
    return seen

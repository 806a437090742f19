"""The two arms of a conditional jump, up to the instruction where they meet again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from framesmith_bytecode import OPS, Block, Instr
from framesmith_dynamo.interpreter.decoded import DecodedCode

_EXIT: Final = -1
#: Arms that both return may be the rest of a large function: instructions that they have at most.
MAX_RETURNING: Final = 64
#: Instructions that leave the frame for a while.
_SUSPENDS: Final = frozenset({"YIELD_VALUE", "SEND"})
_NAMES_LOCAL: Final = frozenset({"STORE_FAST", "DELETE_FAST"})


@dataclass(frozen=True, slots=True)
class Arms:
    """The arms of a branch, by indices of instructions.

    `join`: where they meet, None where both return; `stores`: the variables that they bind.
    `raises`: the start of an arm that can only raise.
    """

    join: int | None
    stores: frozenset[str] = frozenset()
    raises: int | None = None


def arms_of(code: DecodedCode, at: int, target: int) -> Arms | None:
    """Return the arms of the conditional jump `at`; None where they do not meet, or lead back to it."""
    if at not in code.arms:
        code.arms[at] = _Flow(code).arms(at, target)
    found: Arms | None = code.arms[at]
    return found


class _Flow:
    """Blocks and the edges between them, without those of exceptions."""

    def __init__(self, code: DecodedCode) -> None:
        self.code = code
        self.blocks: list[Block] = code.analyses.blocks
        self.after = [self._successors(block) for block in self.blocks]

    def _successors(self, block: Block) -> list[int]:
        instr = self._last(block)
        if instr is not None and OPS[instr].flow == "return":
            return [_EXIT]
        return [one for one in (block.falls_to, block.jumps_to) if one is not None]

    def _last(self, block: Block) -> str | None:
        at = bisect_left(self.code.items, block.end) - 1
        return self.code.instrs[at].op if at >= 0 and self.code.items[at] >= block.start else None

    def arms(self, at: int, target: int) -> Arms | None:
        home, starts = self._block(at), (at + 1, target)
        ends = [self._reached([self._block(start)]) for start in starts]
        returning = [_EXIT in reached for reached in ends]
        if not any(returning):
            return None
        if not all(returning):
            raises = starts[returning.index(False)]
            only = all(self._only_raises(one) for one in ends[returning.index(False)])
            return Arms(starts[returning.index(True)], raises=raises) if only else None
        join = self._join(home)
        inside = self._reached([self._block(start) for start in starts], {join}) - {join, _EXIT}
        instrs = [instr for number in inside for instr in self._instrs(self.blocks[number])]
        if home in inside or any(instr.op in _SUSPENDS for instr in instrs):
            return None
        stores = frozenset(str(instr.arg) for instr in instrs if instr.op in _NAMES_LOCAL)
        if join == _EXIT:
            return Arms(None, stores) if len(instrs) <= MAX_RETURNING else None
        return Arms(bisect_left(self.code.items, self.blocks[join].start), stores)

    def _block(self, index: int) -> int:
        item = self.code.items[index]
        return next(number for number, block in enumerate(self.blocks) if block.start <= item < block.end)

    def _instrs(self, block: Block) -> list[Instr]:
        items = self.code.items
        return self.code.instrs[bisect_left(items, block.start) : bisect_left(items, block.end)]

    def _only_raises(self, number: int) -> bool:
        """Whether a block goes on to later ones, or raises an exception of its own."""
        last = self._last(self.blocks[number])
        return last == "RAISE_VARARGS" or (bool(self.after[number]) and min(self.after[number]) > number)

    def _reached(self, starts: Iterable[int], stops: Iterable[int] = ()) -> set[int]:
        seen, pending, ends = {*starts}, [*starts], {*stops}
        while pending:
            number = pending.pop()
            for successor in () if number == _EXIT or number in ends else self.after[number]:
                if successor not in seen:
                    seen.add(successor)
                    pending.append(successor)
        return seen

    def _join(self, home: int) -> int:
        """Return the first block that every arm from a block to the end of the function comes through, or that end."""
        region = self._reached([home]) - {home, _EXIT}
        common = [one for one in region if _EXIT not in self._reached(self.after[home], {one})]
        return min(common, key=lambda one: len(self._reached(self.after[home], {one})), default=_EXIT)

"""The analyses for continuations, each run at most once for a function: `Analyses`."""

from __future__ import annotations

from functools import cached_property
from types import CodeType
from typing import Final

from framesmith_bytecode.analyses.bound import BoundAnalysis, cells_bound
from framesmith_bytecode.analyses.cfg import Block, control_flow, reachable
from framesmith_bytecode.analyses.liveness import Liveness, liveness, observes_locals
from framesmith_bytecode.analyses.stack import StackStates
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.cpython.opcodes import OPCODES
from framesmith_bytecode.model.bytecode import Bytecode, Instr, expect_bytecode, plain_name
from framesmith_bytecode.model.ops import OPS
from framesmith_bytecode.nested import walk_code
from framesmith_bytecode.reading.decode import decode

_DELETE: Final = OPCODES["DELETE_DEREF"]


class Analyses:
    """Analyses of one function, each run when first used.

    Accepted in place of the `Bytecode`, which must not change, where many continuations of one function are made.
    """

    def __init__(self, bytecode: Bytecode) -> None:
        expect_bytecode(bytecode, "Analyses")
        self.bytecode = bytecode

    @cached_property
    def stack_states(self) -> StackStates:
        """Stack states, labels and regions."""
        return stack_states(self.bytecode)

    @cached_property
    def live(self) -> Liveness:
        """Live variables at every item."""
        return liveness(self.bytecode)

    @cached_property
    def locals_bound(self) -> BoundAnalysis:
        """Locals that may be unbound."""
        return BoundAnalysis(self.bytecode, self.stack_states)

    @cached_property
    def cells_bound(self) -> BoundAnalysis:
        """Cells of the function's own that may be empty."""
        return cells_bound(self.bytecode, self.stack_states)

    @cached_property
    def observes_locals(self) -> bool:
        """Whether the function may read its locals as a whole."""
        return observes_locals(self.bytecode.instructions)

    @cached_property
    def blocks(self) -> list[Block]:
        """Basic blocks."""
        return control_flow(self.bytecode)

    @cached_property
    def variable_items(self) -> list[int]:
        """Indices of the instructions that name a local, a cell or a free variable."""
        return [
            index
            for index, item in enumerate(self.bytecode.instructions)
            if isinstance(item, Instr) and OPS[item[0]].operand in ("local", "deref")
        ]

    @cached_property
    def emptied_inside(self) -> set[str]:
        """Names of cells that functions made by this one may empty (`nonlocal x; del x`)."""
        found: set[str] = set()
        for item in self.bytecode.instructions:
            if isinstance(item, Instr) and isinstance(item.arg, CodeType) and item.arg.co_freevars:
                for code in walk_code(item.arg):
                    if _DELETE in code.co_code[::2]:  # an equal byte in an inline cache is excluded by decoding
                        ops = (i for i in decode(code).instructions if isinstance(i, Instr))
                        found.update(plain_name(i.arg) for i in ops if i.op == "DELETE_DEREF")
        return found

    def displaced_cells(self, index: int) -> frozenset[str]:
        """Cells and free variables whose slot a comprehension may use at item `index`."""
        return self.stack_states.displaced_cells_at(index)

    def kept_items(self, index: int) -> set[int]:
        """Items that can run when control starts at `index`."""
        home = self._block_of(index)
        wanted = reachable(self.blocks, self.blocks[home].successors)
        return self._items_of(wanted) | set(range(index, self.blocks[home].end))

    def earlier_items(self, index: int) -> set[int]:
        """Items that may have run when control comes to item `index`; handlers stand behind what runs after them."""
        home = self._block_of(index)
        sources: dict[int, list[int]] = {}
        for number, block in enumerate(self.blocks):
            for successor in block.successors:
                sources.setdefault(successor, []).append(number)
        seen: set[int] = set()
        pending = [home]
        while pending:
            for source in sources.get(pending.pop(), []):
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        return self._items_of(seen) | set(range(self.blocks[home].start, index))

    def loop_items(self, index: int) -> set[int]:
        """Items of the loops around item `index`, itself included; none outside of loops."""
        home = self._block_of(index)
        behind = reachable(self.blocks, self.blocks[home].successors)
        if home not in behind:
            return set()
        return self._items_of({at for at in behind if home in reachable(self.blocks, self.blocks[at].successors)})

    def _block_of(self, index: int) -> int:
        return next(number for number, block in enumerate(self.blocks) if block.start <= index < block.end)

    def _items_of(self, blocks: set[int]) -> set[int]:
        return {item for number in blocks for item in range(self.blocks[number].start, self.blocks[number].end)}


def analysed(function: Bytecode | Analyses, taker: str) -> Analyses:
    """The analyses of either; raises `TypeError` in the name of the caller for other objects."""
    if isinstance(function, Analyses):
        return function
    expect_bytecode(function, taker, "a Bytecode (or its Analyses)")
    return Analyses(function)

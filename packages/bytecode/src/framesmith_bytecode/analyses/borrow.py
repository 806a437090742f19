"""Loads of locals that may borrow the frame's reference: `borrowable`.

CPython 3.14 loads a local without a reference of its own (LOAD_FAST_BORROW) where the local surely outlives the value
on the stack. The compiler decides within a basic block, and so does `compiler_borrows`, on canonical instructions: a
load borrows unless its value is stored in a local, is on the stack when its local changes, or is there when the block
ends. Blocks that only handlers of exceptions lead to never borrow. `outlives_its_local` adds what the compiler need
not ask of its own code: handlers that change the local while the value is still on their stack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from framesmith_bytecode.analyses.slot_rules import KEEPS
from framesmith_bytecode.analyses.stack import StackStates
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Item, Label
from framesmith_bytecode.model.ops import OPS, pops, pushes

_NO_LOAD: Final = -1
LOADS: Final = frozenset(("LOAD_FAST", "LOAD_CLOSURE"))
_CHANGES: Final = frozenset(("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR", "MAKE_CELL"))
_FALLS: Final = frozenset(("next", "branch"))
# op -> which slots it leaves, by popped slot from the lowest (None: a new value)
_PASSES: Final[dict[str, tuple[int | None, ...]]] = {
    "FORMAT_SIMPLE": (0,),
    "GET_YIELD_FROM_ITER": (0, None)[: TABLE.iterator_slots],
    **({"GET_ITER": (0, None)} if TABLE.iterator_slots == 2 else {}),
    "PUSH_EXC_INFO": (None, 0),
    "SET_FUNCTION_ATTRIBUTE": (1,),
    "LOAD_METHOD": (None, 0),
    "LOAD_SUPER_METHOD": (None, 2),
    "BEFORE_WITH": (None, 0, None) if TABLE.exit_slots == 2 else (None, None),
    "BEFORE_ASYNC_WITH": (None, 0, None) if TABLE.exit_slots == 2 else (None, None),
    "END_SEND": (TABLE.iterator_slots,),
}
# Of these, the compiler takes the result for a new value.
_FORGETS: Final = frozenset(("END_SEND",))


class _Blocks:
    """The basic blocks that normal control reaches, as the compiler had them.

    A label that neither a jump nor a region uses is the end of a block which the compiler's optimizer left: `decode`
    puts one where the code does not borrow and could.
    """

    def __init__(self, bytecode: Bytecode) -> None:
        items = bytecode.instructions
        regions = bytecode.regions
        jumps = {item[1] for item in items if item.__class__ is Instr and item[1].__class__ is Label}
        starts = jumps | {region.handler for region in regions}
        bounds = {label for region in regions for label in (region.start, region.end)} - starts
        self.items = items
        self.spans: list[tuple[int, int]] = []
        self.at: dict[Label, int] = {}
        begin = 0
        for index, item in enumerate(items):
            if isinstance(item, Label):
                if item in bounds:
                    continue
                self._end(begin, index)
                begin = index
                self.at[item] = len(self.spans)
            elif OPS[item[0]].flow != "next":
                self._end(begin, index + 1)
                begin = index + 1
        self._end(begin, len(items))

    def _end(self, begin: int, end: int) -> None:
        if begin < end:
            self.spans.append((begin, end))

    def reached(self) -> Iterator[tuple[int, int]]:
        """Spans of the blocks that are reached without an exception."""
        seen = {0}
        pending = [0]
        while pending:
            number = pending.pop()
            begin, end = self.spans[number]
            yield begin, end
            last = self.items[end - 1]
            flow = OPS[last.op].flow if isinstance(last, Instr) else "next"
            after = [number + 1] if flow in _FALLS and number + 1 < len(self.spans) else []
            if isinstance(last, Instr) and isinstance(last.arg, Label) and last.arg in self.at:
                after.append(self.at[last.arg])
            for following in after:
                if following not in seen:
                    seen.add(following)
                    pending.append(following)


class _Block:
    """One block: the loads whose values are on the stack, and the loads that must own their value."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.stack: list[int] = []
        self.loads: list[int] = []
        self.owners: set[int] = set()

    def pop(self, count: int) -> list[int]:
        """Pop values; those from before the block are no loads."""
        have = min(count, len(self.stack))
        taken = [_NO_LOAD] * (count - have) + self.stack[len(self.stack) - have :]
        del self.stack[len(self.stack) - have :]
        return taken

    def change(self, name: str) -> None:
        """A local changes: values of it on the stack are their own."""
        self.owners.update(load for load in self.stack if load >= 0 and self.items[load].arg == name)  # type: ignore[union-attr]

    def step(self, index: int, op: str, arg: object) -> None:
        """The effect of one instruction."""
        stack = self.stack
        if op in LOADS:
            stack.append(index)
            self.loads.append(index)
        elif op in _CHANGES:
            if op == "STORE_FAST":
                self.owners.update(self.pop(1))
            self.change(arg)  # type: ignore[arg-type]
            if op == "LOAD_FAST_AND_CLEAR":
                stack.append(_NO_LOAD)
        elif op == "COPY":
            stack.append(stack[-arg] if arg <= len(stack) else _NO_LOAD)  # type: ignore[operator]
        elif op == "SWAP":
            if len(stack) < arg:  # type: ignore[operator]
                stack[:0] = [_NO_LOAD] * (arg - len(stack))  # type: ignore[operator]
            stack[-1], stack[-arg] = stack[-arg], stack[-1]  # type: ignore[operator]
        else:
            stack += left_by(op, arg, self.pop(pops(op, arg)))


def left_by(op: str, arg: object, taken: list[int], passes: bool = False) -> list[int]:
    """Return the slots that an instruction pushes for those it popped: values that it keeps, and new ones (-1).

    With `passes` the interpreter's behaviour, without it the compiler's view of it.
    """
    passed = _PASSES.get(op)
    if passed is not None and (passes or op not in _FORGETS):
        return [_NO_LOAD if source is None else taken[source] for source in passed]
    kept = KEEPS.get(op, 0)
    return taken[:kept] + [_NO_LOAD] * (pushes(op, arg) - kept)


def compiler_borrows(bytecode: Bytecode, only: Collection[int] | None = None) -> set[int]:
    """Indices of the loads that borrow by the compiler's rule; with `only`, all of its block are found or none."""
    blocks = _Blocks(bytecode)
    items = blocks.items
    found: set[int] = set()
    for begin, end in blocks.reached():
        if only is not None and only.isdisjoint(range(begin, end)):  # type: ignore[attr-defined]
            continue
        block = _Block(items)
        for index in range(begin, end):
            item = items[index]
            if item.__class__ is Instr:
                block.step(index, item[0], item[1])
        block.owners.update(block.stack)
        found.update(load for load in block.loads if load not in block.owners)
    return found


# ---- what the compiler need not ask ----


def outlives_its_local(bytecode: Bytecode, states: StackStates, load: int) -> bool:
    """Whether some path changes the local of a load while its value is on the stack, or stores the value in a local."""
    items, labels = bytecode.instructions, states.labels
    name = items[load].arg  # type: ignore[union-attr]
    first = states.before[load]
    if first is None:
        return False
    handler_at = {index: span.key for span in states.spans for index in range(span.start, span.end)}
    seen: set[tuple[int, frozenset[int]]] = set()
    pending = [(load + 1, frozenset((first,)))]
    while pending:
        index, held = pending.pop()
        if (index, held) in seen or not held or index >= len(items):
            continue
        seen.add((index, held))
        item, depth = items[index], states.before[index]
        if isinstance(item, Label) or depth is None:
            pending.append((index + 1, held))
            continue
        if index in handler_at:
            key = handler_at[index]
            floor = states.regions.get(key, 0)
            below = frozenset(slot for slot in held if slot < floor)
            pending.append((labels[bytecode.regions[key].handler], below))
        op, arg, _ = item
        if (op in _CHANGES and arg == name) or (op == "STORE_FAST" and depth - 1 in held):
            return True
        flow = OPS[op].flow
        if flow in _FALLS:
            pending.append((index + 1, _held_after(op, arg, depth, held)))
        if flow in ("jump", "branch"):
            base = depth - pops(op, arg) + OPS[op].jump_pushes
            pending.append((labels[arg], frozenset(slot for slot in held if slot < base)))
    return False


def _held_after(op: str, arg: object, depth: int, held: frozenset[int]) -> frozenset[int]:
    """Slots that hold the value after an instruction."""
    if op == "COPY":
        return held | {depth} if depth - arg in held else held  # type: ignore[operator]
    if op == "SWAP":
        moved = {depth - 1: depth - arg, depth - arg: depth - 1}  # type: ignore[operator]
        return frozenset(moved.get(slot, slot) for slot in held)
    base = depth - pops(op, arg)
    below = frozenset(slot for slot in held if slot < base)
    taken = [0 if slot in held else _NO_LOAD for slot in range(base, depth)]
    left = left_by(op, arg, taken, passes=True)
    return below | {base + at for at, value in enumerate(left) if value == 0}


def borrowable(bytecode: Bytecode, states: StackStates) -> set[int]:
    """Indices of the loads that borrow: those of the compiler's rule that are sound on every path."""
    found = compiler_borrows(bytecode)
    if not found or not (states.spans or _passes_on(bytecode)):
        return found
    return {load for load in found if not outlives_its_local(bytecode, states, load)}


def _passes_on(bytecode: Bytecode) -> bool:
    return any(item.__class__ is Instr and item[0] in _FORGETS for item in bytecode.instructions)

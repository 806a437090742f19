"""Cell variables whose slot does not hold their cell for a while: inlined comprehensions reuse the slot (PEP 709)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from framesmith_bytecode.model import Bytecode, Instr, Label
from framesmith_bytecode.ops import OPS, pops, pushes
from framesmith_bytecode.stack import Depths

#: Begins the names of arguments that bring a cell which a comprehension had put on the stack: no name of Python's.
CELL_ARGUMENT: Final = ".cell_"

# A comprehension takes a slot, and gives it back, outside of the region that would clean up: with these alone.
_CANNOT_RAISE: Final = frozenset(
    ("LOAD_FAST_AND_CLEAR", "MAKE_CELL", "SWAP", "COPY", "STORE_FAST", "POP_TOP", "NOP", "LOAD_CONST", "PUSH_NULL")
)

# For each slot of the stack, from the bottom: does it certainly hold a cell?
_Stack: TypeAlias = tuple[bool, ...]


class SlotUse(NamedTuple):
    """`raw`: the cell and free variables whose slot may be raw: cleared, or a comprehension's own variable.

    `stack`: for each slot of the value stack, from the bottom, whether it certainly holds a cell.
    """

    raw: frozenset[str]
    stack: _Stack


_START: Final = SlotUse(frozenset(), ())


def _join(left: SlotUse, right: SlotUse) -> SlotUse:
    stack = tuple(one and other for one, other in zip(left.stack, right.stack, strict=True))
    return SlotUse(left.raw | right.raw, stack)


def shadows_cells(bytecode: Bytecode) -> bool:
    """Does any instruction put a cell out of its slot?"""
    cells = {*bytecode.cellvars, *bytecode.freevars}
    return bool(cells) and any(
        isinstance(item, Instr) and item[0] == "LOAD_FAST_AND_CLEAR" and item[1] in cells
        for item in bytecode.instructions
    )


def _cannot_raise(item: Instr, index: int, labels: Mapping[Label, int]) -> bool:
    """Nor do jumps forward; those backward look for signals."""
    return item.op in _CANNOT_RAISE or (item.op == "JUMP" and labels[item.arg] > index)


def slot_use(bytecode: Bytecode, depths: Depths) -> list[SlotUse | None]:
    """What is known before every item, over all paths to it; None where no path leads."""
    items, labels = bytecode.instructions, depths.labels
    cells = {*bytecode.cellvars, *bytecode.freevars}
    brought = {name for name in bytecode.argument_names if name.startswith(CELL_ARGUMENT)}
    before: list[SlotUse | None] = [None] * len(items)
    handlers: dict[int, tuple[int, int, bool]] = {}
    for span in depths.spans:
        region = bytecode.regions[span.key]
        entry = (labels[region.handler], depths.regions.get(span.key, 0), region.lasti)
        handlers.update(dict.fromkeys(range(span.start, span.end), entry))
    pending: list[tuple[int, SlotUse]] = [(0, _START)]
    unlikely: list[tuple[int, SlotUse]] = []  # only for handlers that nothing else leads to
    while pending or unlikely:
        if not pending and before[unlikely[-1][0]] is not None:
            unlikely.pop()
            continue
        index, use = (pending or unlikely).pop()
        while True:
            known = before[index]
            if known is not None:
                use = _join(known, use)
                if use == known:
                    break
            before[index] = use
            item = items[index]
            if isinstance(item, Label):
                index += 1
                continue
            if index in handlers:
                target, depth, lasti = handlers[index]
                way = (target, SlotUse(use.raw, use.stack[:depth] + (False,) * (1 + lasti)))
                (unlikely if _cannot_raise(item, index, labels) else pending).append(way)
            row = OPS[item.op]
            if row.flow in ("jump", "branch"):
                kept = use.stack[: len(use.stack) - pops(item.op, None)] if row.flow == "branch" else use.stack
                pending.append((labels[item.arg], SlotUse(use.raw, kept + (False,) * row.jump_pushes)))
            if row.flow not in ("next", "branch"):
                break
            use = _step(item, use, cells, brought)
            index += 1
    return before


def raw_cells(bytecode: Bytecode, depths: Depths) -> list[frozenset[str]]:
    """For every item, the cell and free variables whose slot may be raw before it.

    LOAD_FAST_AND_CLEAR makes a slot raw, MAKE_CELL ends that, and so does putting the saved cell back.
    """
    if not shadows_cells(bytecode):
        return [_START.raw] * len(bytecode.instructions)
    return [_START.raw if use is None else use.raw for use in slot_use(bytecode, depths)]


def _step(item: Instr, use: SlotUse, cells: set[str], brought: set[str]) -> SlotUse:
    op, arg, _ = item
    raw, stack = use
    if op == "COPY":
        return SlotUse(raw, (*stack, stack[-arg]))
    if op == "SWAP":
        moved = list(stack)
        moved[-1], moved[-arg] = moved[-arg], moved[-1]
        return SlotUse(raw, tuple(moved))
    if op in ("LOAD_FAST_AND_CLEAR", "STORE_FAST", "MAKE_CELL") and arg in cells:
        if op == "LOAD_FAST_AND_CLEAR":
            return SlotUse(raw | {arg}, (*stack, arg not in raw))
        if op == "MAKE_CELL":
            return SlotUse(raw - {arg}, stack)
        return SlotUse(raw - {arg} if stack[-1] else raw | {arg}, stack[:-1])
    if op == "LOAD_CLOSURE" or (op == "LOAD_FAST_AND_CLEAR" and arg in brought):
        return SlotUse(raw, (*stack, arg not in raw))
    taken, added = pops(op, arg), pushes(op, arg)
    if op in ("FOR_ITER", "GET_LEN", "SEND"):
        taken, added = taken - 1, added - 1
    return SlotUse(raw, stack[: len(stack) - taken] + (False,) * added)

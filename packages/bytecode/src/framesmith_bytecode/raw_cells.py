"""Cell variables whose slot does not hold their cell for a while: inlined comprehensions reuse the slot (PEP 709)."""

from __future__ import annotations

from typing import TypeAlias

from framesmith_bytecode.model import Bytecode, Instr, Label
from framesmith_bytecode.ops import OPS, pops, pushes
from framesmith_bytecode.stack import Depths

# A saved slot on the abstract stack is True if it came from a raw slot, False if it is the cell; None is any value.
_Stack: TypeAlias = tuple[bool | None, ...]


def raw_cells(bytecode: Bytecode, depths: Depths) -> list[frozenset[str]]:
    """For every item, the cell and free variables whose slot is raw before it: cleared, or a comprehension's own.

    LOAD_FAST_AND_CLEAR makes a slot raw, MAKE_CELL ends that, and so does putting the saved cell back.
    """
    items = bytecode.instructions
    nowhere: frozenset[str] = frozenset()
    before: list[frozenset[str]] = [nowhere] * len(items)
    cells = {*bytecode.cellvars, *bytecode.freevars}
    arguments = set(bytecode.argument_names) - cells
    if not any(isinstance(item, Instr) and item.op == "LOAD_FAST_AND_CLEAR" and item.arg in cells for item in items):
        return before
    handlers = {}
    for span in depths.spans:
        region = bytecode.regions[span.key]
        entry = (depths.labels[region.handler], depths.regions.get(span.key, 0), region.lasti)
        handlers.update(dict.fromkeys(range(span.start, span.end), entry))
    seen: set[int] = set()
    pending: list[tuple[int, _Stack, frozenset[str]]] = [(0, (), nowhere)]
    while pending:
        index, stack, raw = pending.pop()
        while index not in seen:
            seen.add(index)
            before[index] = raw
            item = items[index]
            if isinstance(item, Label):
                index += 1
                continue
            if index in handlers:
                target, depth, lasti = handlers[index]
                pending.append((target, stack[:depth] + (None,) * (1 + lasti), raw))
            row = OPS[item.op]
            if row.flow in ("jump", "branch"):
                kept = stack[: len(stack) - pops(item.op, None)] if row.flow == "branch" else stack
                pending.append((depths.labels[item.arg], kept + (None,) * row.jump_pushes, raw))
            if row.flow not in ("next", "branch"):
                break
            stack, raw = _step(item, stack, raw, cells, arguments)
            index += 1
    return before


def _step(
    item: Instr, stack: _Stack, raw: frozenset[str], cells: set[str], arguments: set[str]
) -> tuple[_Stack, frozenset[str]]:
    op, arg, _ = item
    if op == "COPY":
        return (*stack, stack[-arg]), raw
    if op == "SWAP":
        moved = list(stack)
        moved[-1], moved[-arg] = moved[-arg], moved[-1]
        return tuple(moved), raw
    if op in ("LOAD_FAST_AND_CLEAR", "STORE_FAST", "MAKE_CELL") and arg in cells:
        if op == "LOAD_FAST_AND_CLEAR":
            return (*stack, arg in raw), raw | {arg}
        if op == "MAKE_CELL":
            return stack, raw - {arg}
        return stack[:-1], raw - {arg} if stack[-1] is False else raw | {arg}
    if op in ("LOAD_CLOSURE", "PUSH_NULL") or (op == "LOAD_FAST" and arg in arguments):
        return (*stack, False), raw  # what an argument holds may be a cell that a caller saved: see split.py
    taken = pops(op, arg)
    if op in ("FOR_ITER", "GET_LEN", "SEND"):
        taken, added = taken - 1, pushes(op, arg) - 1
        return stack[: len(stack) - taken] + (None,) * added, raw
    return stack[: len(stack) - taken] + (None,) * pushes(op, arg), raw

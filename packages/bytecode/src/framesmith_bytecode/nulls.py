"""Which value-stack slots hold NULL: a walk over all paths with an abstract stack, `stack_kinds`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

from framesmith_bytecode.model import Bytecode, Instr, Label
from framesmith_bytecode.ops import OPS, pops, pushes
from framesmith_bytecode.stack import Depths
from framesmith_bytecode.versions import TABLE


class Slot(Enum):
    """What a stack slot can hold."""

    VALUE = "value"
    CELL = "cell"
    NULL = "null"
    MAYBE_NULL = "maybe null"


Kinds: TypeAlias = tuple[Slot, ...]

_METHOD: Final[Kinds] = (Slot.MAYBE_NULL, Slot.VALUE) if TABLE.null_first else (Slot.VALUE, Slot.MAYBE_NULL)
_PUSHED: Final[Mapping[str, Kinds]] = {
    "LOAD_CLOSURE": (Slot.CELL,),
    "PUSH_NULL": (Slot.NULL,),
    "LOAD_METHOD": _METHOD,
    "LOAD_SUPER_METHOD": _METHOD,
    "LOAD_FAST_AND_CLEAR": (Slot.MAYBE_NULL,),
}


def _copy(kinds: Kinds, n: int) -> Kinds:
    return (*kinds, kinds[-n])


def _swap(kinds: Kinds, n: int) -> Kinds:
    moved = list(kinds)
    moved[-1], moved[-n] = moved[-n], moved[-1]
    return tuple(moved)


_MOVES: Final[Mapping[str, Callable[[Kinds, int], Kinds]]] = {"COPY": _copy, "SWAP": _swap}


def _values(n: int) -> Kinds:
    return (Slot.VALUE,) * n


def _after(op: str, arg: Any, kinds: Kinds) -> Kinds:
    if op in _MOVES:
        return _MOVES[op](kinds, arg)
    taken = pops(op, arg)
    kept = kinds[: len(kinds) - taken] if taken else kinds
    if op in ("FOR_ITER", "GET_LEN", "SEND"):
        return kept + kinds[len(kinds) - taken :][:1] + _values(pushes(op, arg) - 1)
    return kept + (_PUSHED.get(op) or _values(pushes(op, arg)))


def _join_slots(left: Slot, right: Slot) -> Slot:
    if left is right:
        return left
    return Slot.VALUE if {left, right} == {Slot.VALUE, Slot.CELL} else Slot.MAYBE_NULL


def _join(left: Kinds, right: Kinds) -> Kinds:
    return tuple(map(_join_slots, left, right))


def stack_kinds(bytecode: Bytecode, depths: Depths) -> list[Kinds | None]:
    """Kinds of the slots before every item, bottom first; None where no path leads."""
    items = bytecode.instructions
    before: list[Kinds | None] = [None] * len(items)
    handlers: dict[int, tuple[int, int, bool]] = {}
    for span in depths.spans:
        region = bytecode.regions[span.key]
        depth = depths.regions.get(span.key)
        if depth is not None:
            entry = (depths.labels[region.handler], depth, region.lasti)
            handlers.update(dict.fromkeys(range(span.start, span.end), entry))
    pending: list[tuple[int, Kinds]] = [(0, ())]
    while pending:
        index, kinds = pending.pop()
        while True:
            known = before[index]
            if known is not None:
                kinds = _join(known, kinds)
                if kinds == known:
                    break
            before[index] = kinds
            item = items[index]
            if isinstance(item, Label):
                index += 1
                continue
            if index in handlers:
                target, depth, lasti = handlers[index]
                pending.append((target, kinds[:depth] + _values(1 + lasti)))
            flow = OPS[item.op].flow
            if flow == "branch":
                row = OPS[item.op]
                pending.append((depths.labels[item.arg], kinds[: -pops(item.op, None)] + _values(row.jump_pushes)))
            elif flow == "jump":
                pending.append((depths.labels[item.arg], kinds))
            if flow not in ("next", "branch"):
                break
            kinds = _after(item.op, item.arg, kinds)
            index += 1
    return before


class _SavedSlots:
    """Sweeps that follow what LOAD_FAST_AND_CLEAR pushed; bit i of a mask means stack slot i may be such a NULL.

    Only comprehensions put raw slots on the stack; the NULL of a call never gets to a store.
    """

    def __init__(self, bytecode: Bytecode, depths: Depths) -> None:
        self.items = bytecode.instructions
        self.depths = depths
        self.at_label: dict[Label, int] = {}
        self.found: set[int] = set()
        self.grew = True
        self.handlers = {
            index: (bytecode.regions[span.key].handler, depths.regions.get(span.key, 0))
            for span in depths.spans
            for index in range(span.start, span.end)
        }

    def send(self, label: Label, mask: int, index: int) -> None:
        known = self.at_label.get(label, 0)
        if mask & ~known:
            self.at_label[label] = known | mask
            if self.depths.labels[label] <= index:
                self.grew = True

    def sweep(self) -> None:
        self.grew = False
        mask = 0
        for index, item in enumerate(self.items):
            if isinstance(item, Label):
                mask |= self.at_label.get(item, 0)
                continue
            depth = self.depths.before[index]
            if depth is None or not (mask or item.op == "LOAD_FAST_AND_CLEAR"):
                continue
            if index in self.handlers:
                label, kept = self.handlers[index]
                self.send(label, mask & (1 << kept) - 1, index)
            mask = self.step(index, item, depth, mask)

    def step(self, index: int, item: Instr, depth: int, mask: int) -> int:
        op, arg, _ = item
        if op == "LOAD_FAST_AND_CLEAR":
            return mask | 1 << depth
        if op in ("COPY", "SWAP"):
            slot: int = depth - arg
            top, other = mask >> depth - 1 & 1, mask >> slot & 1
            if op == "COPY":
                return mask | other << depth
            return mask & ~(1 << depth - 1 | 1 << slot) | other << depth - 1 | top << slot
        if op == "STORE_FAST" and mask >> depth - 1:
            self.found.add(index)
        mask &= (1 << depth - pops(op, arg)) - 1
        flow = OPS[op].flow
        if flow in ("jump", "branch"):
            self.send(arg, mask, index)
        return mask if flow in ("next", "branch") else 0


def stores_maybe_null(bytecode: Bytecode, depths: Depths) -> set[int]:
    """Indices of STORE_FAST items that may store NULL, which leaves the local unbound (ends of comprehensions)."""
    if not any(isinstance(item, Instr) and item.op == "LOAD_FAST_AND_CLEAR" for item in bytecode.instructions):
        return set()
    state = _SavedSlots(bytecode, depths)
    while state.grew:
        state.sweep()
    return state.found

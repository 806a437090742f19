"""Which loads of locals may find them unbound: a forward analysis over all paths, exception edges included."""

from __future__ import annotations

from typing import Final

from framesmith_bytecode.model import Bytecode, Instr, Label
from framesmith_bytecode.nulls import stores_maybe_null
from framesmith_bytecode.ops import OPS
from framesmith_bytecode.stack import Depths

_FAST: Final = frozenset(name for name, row in OPS.items() if row.operand == "local")
_UNBIND: Final = frozenset(("DELETE_FAST", "LOAD_FAST_AND_CLEAR"))
_LEAVES: Final = frozenset(name for name, row in OPS.items() if row.flow in ("jump", "return", "raise"))
_JUMPS: Final = frozenset(name for name, row in OPS.items() if row.flow in ("jump", "branch"))


class _Pass:
    """One sweep after another over the instructions; a bit set means the local may be unbound."""

    def __init__(self, bytecode: Bytecode, depths: Depths) -> None:
        self.items = bytecode.instructions
        self.bits = {name: 1 << i for i, name in enumerate(bytecode.varnames)}
        arguments = len(bytecode.argument_names)
        self.entry = (1 << len(bytecode.varnames)) - (1 << arguments)
        self.reached = depths.before
        self.null_stores = stores_maybe_null(bytecode, depths)
        handlers = {span.key: bytecode.regions[span.key].handler for span in depths.spans}
        self.handler_at = {i: handlers[span.key] for span in depths.spans for i in range(span.start, span.end)}
        self.labels = depths.labels
        self.at_label: dict[Label, int] = {}
        self.grew = False
        self.mask = 0

    def send(self, label: Label, mask: int, index: int) -> None:
        """Let a path go to the label; only labels already passed call for another sweep."""
        known = self.at_label.get(label, 0)
        if mask & ~known:
            self.at_label[label] = known | mask
            if self.labels[label] <= index:
                self.grew = True

    def sweep(self, stop: int = -1) -> set[int]:
        """Indices of suspicious loads; `self.mask` becomes what holds before item `stop`."""
        mask: int = self.entry
        suspects: set[int] = set()
        handler_at, reached, at_label = self.handler_at, self.reached, self.at_label
        for index, item in enumerate(self.items):
            if isinstance(item, Label):
                mask |= at_label.get(item, 0)
                if index == stop:
                    self.mask = mask
                continue
            if index == stop:
                self.mask = mask
            if reached[index] is None:
                continue
            op = item[0]
            handler = handler_at.get(index) if handler_at else None
            if handler is not None and mask & ~at_label.get(handler, 0):
                self.send(handler, mask, index)
            if op in _FAST:
                mask = self.variable(index, item, mask, suspects)
                if handler is not None and mask & ~at_label.get(handler, 0):
                    self.send(handler, mask, index)
            elif op in _JUMPS:
                self.send(item.arg, mask, index)
                if op in _LEAVES:
                    mask = 0
            elif op in _LEAVES:
                mask = 0
        return suspects

    def variable(self, index: int, item: Instr, mask: int, suspects: set[int]) -> int:
        bit = self.bits.get(item.arg, 0)
        if item.op in _UNBIND or index in self.null_stores:
            return mask | bit
        if item.op == "LOAD_FAST" and mask & bit:
            suspects.add(index)
        return mask & ~bit


def _settled(state: _Pass, stop: int = -1) -> set[int]:
    suspects = state.sweep(stop)
    while state.grew:
        state.grew = False
        suspects = state.sweep(stop)
    return suspects


def possibly_unbound(bytecode: Bytecode, depths: Depths) -> set[int]:
    """Indices of the LOAD_FAST items whose local some path leaves unbound."""
    if len(bytecode.varnames) == len(bytecode.argument_names) and not any(
        isinstance(item, Instr) and item.op in _UNBIND for item in bytecode.instructions
    ):
        return set()
    return _settled(_Pass(bytecode, depths))


def possibly_unbound_before(bytecode: Bytecode, depths: Depths, index: int) -> set[str]:
    """Locals that some path leaves unbound at item `index`."""
    state = _Pass(bytecode, depths)
    _settled(state, index)
    return {name for name, bit in state.bits.items() if state.mask & bit}

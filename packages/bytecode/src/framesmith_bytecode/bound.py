"""Which loads of locals may find them unbound: a forward analysis over all paths, exception edges included."""

from __future__ import annotations

from typing import Final

from framesmith_bytecode.model import Bytecode, Instr, Label
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
        handlers = {span.key: bytecode.regions[span.key].handler for span in depths.spans}
        self.handler_at = {i: handlers[span.key] for span in depths.spans for i in range(span.start, span.end)}
        self.at_label: dict[Label, int] = {}
        self.grew = False

    def send(self, label: Label, mask: int) -> None:
        known = self.at_label.get(label, 0)
        if mask & ~known:
            self.at_label[label] = known | mask
            self.grew = True

    def sweep(self) -> set[int]:
        mask: int = self.entry
        suspects: set[int] = set()
        handler_at = self.handler_at
        for index, item in enumerate(self.items):
            if isinstance(item, Label):
                mask |= self.at_label.get(item, 0)
                continue
            if self.reached[index] is None:
                continue
            op = item.op
            handler = handler_at.get(index) if handler_at else None
            if handler is not None:
                self.send(handler, mask)
            if op in _FAST:
                mask = self.variable(index, item, mask, suspects)
                if handler is not None:
                    self.send(handler, mask)
            elif op in _JUMPS:
                self.send(item.arg, mask)
            if op in _LEAVES:
                mask = 0
        return suspects

    def variable(self, index: int, item: Instr, mask: int, suspects: set[int]) -> int:
        bit = self.bits.get(item.arg, 0)
        if item.op in _UNBIND:
            return mask | bit
        if item.op == "LOAD_FAST" and mask & bit:
            suspects.add(index)
        return mask & ~bit


def possibly_unbound(bytecode: Bytecode, depths: Depths) -> set[int]:
    """Indices of the LOAD_FAST items whose local some path leaves unbound.

    A STORE_FAST counts as binding, also where it puts back what LOAD_FAST_AND_CLEAR saved: loads after such a
    comprehension are LOAD_FAST_CHECK already where the compiler was not certain.
    """
    state = _Pass(bytecode, depths)
    if not state.entry and not any(isinstance(item, Instr) and item.op in _UNBIND for item in state.items):
        return set()
    suspects = state.sweep()
    while state.grew:
        state.grew = False
        suspects = state.sweep()
    return suspects

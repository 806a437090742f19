"""Which loads of locals may find them unbound: a forward analysis over all paths, exception edges included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from framesmith_bytecode.model import Bytecode, Instr, Label
from framesmith_bytecode.nulls import stores_maybe_null
from framesmith_bytecode.ops import OPS
from framesmith_bytecode.stack import Depths

_FAST: Final = frozenset(name for name, row in OPS.items() if row.operand == "local")
_UNBIND: Final = frozenset(("DELETE_FAST", "LOAD_FAST_AND_CLEAR"))
_FLOW: Final = {name: row.flow for name, row in OPS.items() if row.flow != "next"}

# What matters of a function, in order: (kind, item index, variable's bit, label or handler).
Event: TypeAlias = tuple[int, int, int, Label | None]
_LABEL, _LOAD, _BIND, _UNBOUND, _BRANCH, _JUMP, _LEAVE = range(7)


class _Analysis:
    """One sweep after another over the events; a set bit of a mask means that the local may be unbound.

    A region's handler is told of the mask at labels and after unbinding: between those it only shrinks.
    """

    def __init__(self, bytecode: Bytecode, depths: Depths) -> None:
        unbindable = {i.arg for i in bytecode.instructions if isinstance(i, Instr) and i[0] in _UNBIND}
        arguments = set(bytecode.argument_names)
        suspects = [name for name in bytecode.varnames if name not in arguments or name in unbindable]
        self.bits = {name: 1 << i for i, name in enumerate(suspects)}
        self.entry = sum(bit for name, bit in self.bits.items() if name not in arguments)
        self.labels = depths.labels
        self.at_label: dict[Label, int] = {}
        self.grew = True
        self.events = self._events(bytecode, depths) if suspects else []

    def _events(self, bytecode: Bytecode, depths: Depths) -> list[Event]:
        handlers = {
            index: bytecode.regions[span.key].handler for span in depths.spans for index in range(span.start, span.end)
        }
        null_stores = stores_maybe_null(bytecode, depths)
        bits, before = self.bits, depths.before
        events: list[Event] = []
        for index, item in enumerate(bytecode.instructions):
            if before[index] is None:
                continue
            if isinstance(item, Label):
                events.append((_LABEL, index, 0, item))
                if index in handlers:
                    events.append((_UNBOUND, index, 0, handlers[index]))
                continue
            op = item[0]
            if op in _FAST:
                bit = bits.get(item[1], 0)
                if op in _UNBIND or index in null_stores:
                    events.append((_UNBOUND, index, bit, handlers.get(index)))
                elif bit:
                    events.append((_LOAD if op == "LOAD_FAST" else _BIND, index, bit, None))
            elif op in _FLOW:
                kind = {"branch": _BRANCH, "jump": _JUMP}.get(_FLOW[op], _LEAVE)
                events.append((kind, index, 0, None if kind == _LEAVE else item[1]))
        return events

    def sweep(self, events: Sequence[Event], mask: int, found: set[int]) -> int:
        """Collect suspicious loads; returns the mask after the last event."""
        at_label, labels = self.at_label, self.labels
        for kind, index, bit, label in events:
            if kind == _LOAD:
                if mask & bit:
                    found.add(index)
                    mask &= ~bit
            elif kind == _BIND:
                mask &= ~bit
            elif kind == _LEAVE:
                mask = 0
            elif label is not None:
                known = at_label.get(label, 0)
                if kind == _LABEL:
                    mask |= known
                    continue
                if kind == _UNBOUND:
                    mask |= bit
                if mask & ~known:
                    at_label[label] = known | mask
                    self.grew = self.grew or labels[label] <= index
                if kind == _JUMP:
                    mask = 0
            else:
                mask |= bit
        return mask

    def settle(self) -> set[int]:
        found: set[int] = set()
        while self.grew:
            self.grew = False
            found.clear()
            self.sweep(self.events, self.entry, found)
        return found


def possibly_unbound(bytecode: Bytecode, depths: Depths) -> set[int]:
    """Indices of the LOAD_FAST items whose local some path leaves unbound."""
    return _Analysis(bytecode, depths).settle()


def possibly_unbound_before(bytecode: Bytecode, depths: Depths, index: int) -> set[str]:
    """Locals that some path leaves unbound at item `index`."""
    analysis = _Analysis(bytecode, depths)
    analysis.settle()
    events = [event for event in analysis.events if event[1] < index or (event[1] == index and event[0] == _LABEL)]
    mask = analysis.sweep(events, analysis.entry, set())
    return {name for name, bit in analysis.bits.items() if mask & bit}

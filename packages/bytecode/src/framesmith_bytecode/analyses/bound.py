"""Loads that may find their local unbound or their cell empty: a forward analysis over all paths, exceptions too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from framesmith_bytecode.analyses.stack import StackStates
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Label
from framesmith_bytecode.model.ops import OPS


class _Family(NamedTuple):
    """Operations on one sort of variable: loads, operations that unbind it, and all relevant ones.

    The others leave the variable bound.
    """

    load: str
    unbind: frozenset[str]
    ops: frozenset[str]


_FAST: Final = _Family(
    "LOAD_FAST",
    frozenset(("DELETE_FAST", "LOAD_FAST_AND_CLEAR")),
    frozenset(name for name, row in OPS.items() if row.operand == "local"),
)
# STORE_FAST of a cell's slot restores a saved cell, whose contents are unknown.
_CELLS: Final = _Family(
    "LOAD_DEREF",
    frozenset(("DELETE_DEREF", "MAKE_CELL", "STORE_FAST")),
    frozenset(("LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "MAKE_CELL", "STORE_FAST")),
)
_FLOW: Final = {name: row.flow for name, row in OPS.items() if row.flow != "next"}

# The relevant items of a function, in order: (kind, item index, variable's bit, label or handler).
Event: TypeAlias = tuple[int, int, int, Label | None]
_LABEL, _LOAD, _BIND, _UNBOUND, _BRANCH, _JUMP, _LEAVE = range(7)


class BoundAnalysis:
    """Sweeps over the events until nothing changes; a set bit of a mask means that the local may be unbound.

    The mask is joined into a region's handler at labels and after unbinding; in between it only shrinks.
    """

    def __init__(self, bytecode: Bytecode, states: StackStates, family: _Family = _FAST) -> None:
        unbindable = {
            item[1]
            for index, item in enumerate(bytecode.instructions)
            if isinstance(item, Instr)
            and (item[0] in family.unbind or (item[0] == "STORE_FAST" and states.stores_null(index)))
        }
        cells = {*bytecode.cellvars, *bytecode.freevars}
        bound = set(bytecode.argument_names)
        names = bytecode.cellvars
        if family is _FAST:  # the slot of a cell holds the cell until a comprehension takes it
            bound |= cells
            names = [*bytecode.varnames, *(cells.difference(bytecode.varnames) & unbindable)]
        suspects = [name for name in names if name not in bound or name in unbindable]
        self.bits = {name: 1 << i for i, name in enumerate(suspects)}
        self.entry = sum(bit for name, bit in self.bits.items() if name not in bound)
        self.labels = states.labels
        self.at_label: dict[Label, int] = {}
        self.changed = True
        self.events = self._events(bytecode, states, family) if suspects else []
        self.found = self._settle()

    def _events(self, bytecode: Bytecode, states: StackStates, family: _Family) -> list[Event]:
        load, unbind, ops = family
        handlers = {
            index: bytecode.regions[span.key].handler for span in states.spans for index in range(span.start, span.end)
        }
        bits, before = self.bits, states.before
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
            if op in ops:
                bit = bits.get(item[1], 0)
                if op == "DELETE_DEREF" and bit:
                    events.append((_LOAD, index, bit, None))
                if op in unbind or (op == "STORE_FAST" and states.stores_null(index)):
                    events.append((_UNBOUND, index, bit, handlers.get(index)))
                elif bit:
                    events.append((_LOAD if op == load else _BIND, index, bit, None))
            elif op in _FLOW:
                kind = {"branch": _BRANCH, "jump": _JUMP}.get(_FLOW[op], _LEAVE)
                events.append((kind, index, 0, None if kind == _LEAVE else item[1]))
        return events

    def _sweep(self, events: Sequence[Event], mask: int, found: set[int]) -> int:
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
                    self.changed = self.changed or labels[label] <= index
                if kind == _JUMP:
                    mask = 0
            else:
                mask |= bit
        return mask

    def _settle(self) -> set[int]:
        found: set[int] = set()
        while self.changed:
            self.changed = False
            found.clear()
            self._sweep(self.events, self.entry, found)
        return found

    def before(self, index: int) -> set[str]:
        """Variables that some path leaves unbound at item `index`."""
        events = [event for event in self.events if event[1] < index or (event[1] == index and event[0] == _LABEL)]
        mask = self._sweep(events, self.entry, set())
        return {name for name, bit in self.bits.items() if mask & bit}


def possibly_unbound(bytecode: Bytecode, states: StackStates) -> set[int]:
    """Indices of the LOAD_FAST items whose local some path leaves unbound."""
    return BoundAnalysis(bytecode, states).found


def cells_bound(bytecode: Bytecode, states: StackStates) -> BoundAnalysis:
    """The same for the function's own cells: `found` are the items that read or delete a cell which may be empty.

    Other functions that share a cell may empty it too; they are not considered.
    """
    return BoundAnalysis(bytecode, states, _CELLS)

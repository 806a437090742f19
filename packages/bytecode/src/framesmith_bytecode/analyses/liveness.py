"""Live variables at every instruction: `liveness`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from framesmith_bytecode.analyses.header import check_readable
from framesmith_bytecode.analyses.spans import region_spans
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Item, Label, expect_index
from framesmith_bytecode.model.ops import OPS, pops, pushes

_VARIABLE: Final = frozenset(name for name, row in OPS.items() if row.operand in ("local", "deref"))
_FLOW: Final = {name: row.flow for name, row in OPS.items()}

# Builtins that return all locals.
OBSERVERS: Final = frozenset(("locals", "vars", "dir", "eval", "exec"))


# Those of them that, with an argument, inspect it instead of the locals.
OF_AN_OBJECT: Final = frozenset(("vars", "dir"))


def observes_locals(items: Sequence[Item]) -> bool:
    """Whether the instructions may read the frame's locals as a whole."""
    return any(
        isinstance(item, Instr)
        and item.op in ("LOAD_GLOBAL", "LOAD_NAME")
        and item.arg in OBSERVERS
        and not (item.arg in OF_AN_OBJECT and _is_called_with_one(items, index))
        for index, item in enumerate(items)
    )


def _is_called_with_one(items: Sequence[Item], index: int) -> bool:
    """Whether the loaded object is called with one argument in the straight-line code that follows."""
    above = 0
    for item in items[index + 1 :]:
        if not isinstance(item, Instr) or isinstance(item.arg, Label):
            return False
        taken = pops(item.op, item.arg)
        if taken > above:
            return item.op == "CALL" and item.arg.argc > 0
        above += pushes(item.op, item.arg) - taken
    return False


class Liveness:
    """The live variables at every item of a `Bytecode`.

    A local is live if some path reads or deletes it before binding it. A cell or free variable is live if some path
    uses it at all, since other functions share the cell.
    """

    def __init__(self, bytecode: Bytecode) -> None:
        self._labels = check_readable(bytecode, "liveness")
        self._items = bytecode.instructions
        self.names = list(dict.fromkeys([*bytecode.varnames, *bytecode.cellvars, *bytecode.freevars]))
        self._bits = {name: 1 << i for i, name in enumerate(self.names)}
        self._cells = {*bytecode.cellvars, *bytecode.freevars}
        self._handler_at = {
            index: self._labels[bytecode.regions[span.key].handler]
            for span in region_spans(bytecode, self._labels)
            for index in range(span.start, span.end)
        }
        self._before = [0] * (len(self._items) + 1)
        while self._sweep():
            pass

    def _sweep(self) -> bool:
        """One backward pass; whether it changed anything."""
        before, items, handler_at = self._before, self._items, self._handler_at
        changed = False
        for index in range(len(items) - 1, -1, -1):
            item = items[index]
            live = before[index + 1]
            if not isinstance(item, Label):
                live = self._through(item, live)
                if index in handler_at:
                    live |= before[handler_at[index]]
            if live != before[index]:
                before[index] = live
                changed = True
        return changed

    def _through(self, item: Instr, live: int) -> int:
        op, arg, _ = item
        flow = _FLOW[op]
        if flow == "jump":
            return self._before[self._labels[arg]]
        if flow == "branch":
            return live | self._before[self._labels[arg]]
        if flow in ("return", "raise"):
            return 0
        if op in _VARIABLE:
            bit = self._bits.get(arg, 0)
            return live & ~bit if op == "STORE_FAST" and arg not in self._cells else live | bit
        return live

    def before(self, index: int) -> frozenset[str]:
        """Names live at item `index`; none at the end. Raises `IndexError` for an index out of range."""
        expect_index(index, self._items, "Liveness.before")
        if not 0 <= index < len(self._before):
            raise IndexError(f"Liveness.before takes the index of an item, 0 to {len(self._items) - 1}, not {index}")
        live = self._before[index]
        return frozenset(name for name, bit in self._bits.items() if live & bit)


def liveness(bytecode: Bytecode) -> Liveness:
    """Live variables at every item. Raises `BytecodeError` for a label that is missing or defined twice."""
    return Liveness(bytecode)

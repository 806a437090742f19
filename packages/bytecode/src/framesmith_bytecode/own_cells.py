"""The cells of a continuation: which it takes over as its own, which are free variables of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from framesmith_bytecode.analyses import Analyses
from framesmith_bytecode.model import FREE_MARK, Bytecode, Instr, plain_name
from framesmith_bytecode.ops import OPS


@dataclass(frozen=True, slots=True)
class CellPlan:
    """`free`: the cells the caller passes as closure, by the function's names; `freevars`: the continuation's names.

    `own`: cell variables of the function that are cell variables of the continuation too. Each is brought by the free
    variable that `brought` names, or comes from the stack when a comprehension ends.
    """

    own: tuple[str, ...]
    brought: dict[str, str]
    free: tuple[str, ...]

    @property
    def freevars(self) -> list[str]:
        """Names inside the continuation."""
        return [self.brought.get(cell, cell) for cell in self.free]


def super_argument(bytecode: Bytecode) -> str | None:
    """The parameter that `super()` without arguments reads from the frame, if the function may call it."""
    if "__class__" not in bytecode.freevars or not bytecode.argcount:
        return None
    return bytecode.varnames[0]


def _used(known: Analyses, kept: Collection[int]) -> list[str]:
    """Cells and free variables that the kept items name, and those that `super()` reads without a name."""
    bytecode = known.bytecode
    items = bytecode.instructions
    used = {item.arg for i in known.variable_items if i in kept and isinstance(item := items[i], Instr)}
    used.add(super_argument(bytecode))
    cells = [*bytecode.cellvars, *bytecode.freevars]
    return [cell for cell in cells if cell in used or plain_name(cell) == "__class__"]


def _need_owner(known: Analyses, kept: Collection[int]) -> set[str]:
    """Cells that the kept items may find empty (whose cell it is matters for the error) or use as slots."""
    items, found = known.bytecode.instructions, known.cells_bound.found
    wanted = set(known.emptied_inside)
    for i in known.variable_items:
        item = items[i]
        if i in kept and isinstance(item, Instr):
            slot = OPS[item.op].operand == "local" or item.op in ("MAKE_CELL", "DELETE_DEREF")
            if slot or i in found:
                wanted.add(item.arg)
    return wanted


def plan_cells(known: Analyses, index: int, kept: Collection[int]) -> CellPlan:
    """The cells of the continuation at item `index` in which the `kept` items can run."""
    bytecode, raw = known.bytecode, known.raw_cells(index)
    used = _used(known, kept)
    if not bytecode.cellvars:
        return CellPlan((), {}, tuple(used))
    wanted = {super_argument(bytecode), *raw, *_need_owner(known, kept)}
    own = tuple(cell for cell in bytecode.cellvars if cell in wanted and (cell in used or cell in raw))
    brought = {cell: cell + FREE_MARK for cell in own if cell not in raw}
    return CellPlan(own, brought, tuple(cell for cell in used if cell not in raw))


def why_no_cells(known: Analyses, index: int, kept: Collection[int]) -> str | None:
    """Why a continuation at the place could not have the cells it needs, None if it can."""
    bytecode, raw = known.bytecode, known.raw_cells(index)
    stuck = sorted(raw - set(bytecode.cellvars))
    if stuck:
        return f"the slot of the free variable {stuck[0]!r} is in use for something else"
    used = _used(known, kept)
    for cell in bytecode.cellvars:
        if cell in used and cell not in raw and cell + FREE_MARK in used:
            return f"{cell!r} is both a cell and a free variable of the function"
    first = super_argument(bytecode)
    if first is None or first not in bytecode.cellvars:
        return None
    if first in raw:
        return f"super() may be called and a comprehension's variable stands where its argument {first!r} belongs"
    if first in known.cells_bound.before(index) | known.emptied_inside:
        return f"super() may be called and the cell of its argument {first!r} may be empty"
    return None

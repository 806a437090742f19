"""The cells of a continuation: its own cell variables and its free variables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from framesmith_bytecode.continuations.cached_analyses import Analyses
from framesmith_bytecode.model.bytecode import FREE_MARK, Bytecode, Instr, plain_name
from framesmith_bytecode.model.ops import OPS


@dataclass(frozen=True, slots=True)
class CellPlan:
    """`free`: the cells the caller passes as closure, by the function's names; `freevars`: the continuation's names.

    `own`: cell variables of the function that are cell variables of the continuation too. Each comes from the free
    variable named by `brought`, or from the stack when a comprehension ends.
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
    """Cells and free variables that the kept items name, and those that `super()` or `locals()` read without a name."""
    bytecode = known.bytecode
    if known.observes_locals:
        return [*bytecode.cellvars, *bytecode.freevars]
    items = bytecode.instructions
    used = {item.arg for i in known.variable_items if i in kept and isinstance(item := items[i], Instr)}
    used.add(super_argument(bytecode))
    cells = [*bytecode.cellvars, *bytecode.freevars]
    return [cell for cell in cells if cell in used or plain_name(cell) == "__class__"]


def _slots_used(known: Analyses, kept: Collection[int]) -> set[str]:
    """Names of cells whose slot the kept items use."""
    items = (known.bytecode.instructions[i] for i in known.variable_items if i in kept)
    ops = (item for item in items if isinstance(item, Instr))
    return {item.arg for item in ops if OPS[item.op].operand == "local" or item.op == "MAKE_CELL"}


def _found_empty(known: Analyses, kept: Collection[int]) -> set[str]:
    """The function's own cells that the kept items may find empty: the error depends on the cell's owner."""
    bytecode, found = known.bytecode, known.cells_bound.found
    items = (bytecode.instructions[i] for i in known.variable_items if i in kept)
    reads = [item for item in items if isinstance(item, Instr) and item.op in ("LOAD_DEREF", "DELETE_DEREF")]
    names = {item.arg for item in reads if item.arg in known.emptied_inside}
    names.update(bytecode.instructions[i].arg for i in found if i in kept)  # type: ignore[union-attr]
    return names & set(bytecode.cellvars)


def plan_cells(known: Analyses, index: int, kept: Collection[int], own_cells: bool) -> CellPlan:
    """The cells of the continuation at item `index` in which the `kept` items can run."""
    bytecode, displaced = known.bytecode, known.displaced_cells(index)
    used = _used(known, kept)
    if not own_cells or not bytecode.cellvars:
        return CellPlan((), {}, tuple(used))
    wanted = {super_argument(bytecode), *displaced, *_slots_used(known, kept), *_found_empty(known, kept)}
    own = tuple(cell for cell in bytecode.cellvars if cell in wanted and (cell in used or cell in displaced))
    brought = {cell: cell + FREE_MARK for cell in own if cell not in displaced}
    return CellPlan(own, brought, tuple(cell for cell in used if cell not in displaced))


def why_no_cells(known: Analyses, index: int, kept: Collection[int], own_cells: bool) -> str | None:
    """The reason why a continuation at `index` could not have the cells it needs, or None."""
    bytecode, displaced = known.bytecode, known.displaced_cells(index)
    stuck = sorted(displaced - set(bytecode.cellvars) if own_cells else displaced)
    if stuck:
        return f"a comprehension's variable stands where the cell of {stuck[0]!r} belongs"
    used = _used(known, kept)
    for cell in bytecode.cellvars:
        if cell in used and cell not in displaced and cell + FREE_MARK in used:
            return f"{cell!r} is both a cell and a free variable of the function"
    empty = [] if own_cells else sorted(_found_empty(known, kept))
    if empty:
        return f"the cell of {empty[0]!r} may be read while it is empty, whose error depends on who owns the cell"
    return _why_no_super(known, index, own_cells)


def _why_no_super(known: Analyses, index: int, own_cells: bool) -> str | None:
    bytecode = known.bytecode
    first = super_argument(bytecode)
    if first is None or first not in bytecode.cellvars:
        return None
    if first in known.displaced_cells(index):
        return f"super() may be called and a comprehension's variable stands where its argument {first!r} belongs"
    if first in known.cells_bound.before(index) | known.emptied_inside:
        return f"super() may be called and the cell of its argument {first!r} may be empty"
    written = any(
        isinstance(item, Instr) and item.op in ("STORE_DEREF", "DELETE_DEREF") and item.arg == first
        for item in bytecode.instructions
    )
    if written and not own_cells:
        return f"super() may be called and its argument {first!r} is a cell that is assigned to"
    return None

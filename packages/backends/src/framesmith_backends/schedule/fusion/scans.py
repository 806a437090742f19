"""Reverses scans that are only read from their end on, so that readers and scan are at the same point.

The derivative of a cumulative sum is a flip, a cumulative sum and a flip: one reversed scan, all in one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from framesmith_backends.ir.expr import Expr, Load, loads, substitute, transform
from framesmith_backends.ir.program import Def, Program
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var


def reverse_scans(program: Program) -> Program:
    """The program with those scans reversed that are only read from their end on."""
    read: dict[str, list[Load]] = {}
    for d in program.defs.values():
        for load in loads(d.body):
            read.setdefault(load.source, []).append(load)
    reverse = {
        d.name: d
        for d in program.defs.values()
        if d.scanned is not None
        and d.name not in program.kept | program.alone
        and _is_read_back(d, read.get(d.name, []))
    }
    if not reverse:
        return program
    return replace(program, defs={name: _reversed(d, reverse) for name, d in program.defs.items()})


def _is_read_back(d: Def, read: list[Load]) -> bool:
    """Whether each reader moves from the end of the scanned dimension on."""
    assert d.scanned is not None
    axis = d.axes.index(d.scanned)
    return bool(read) and all(_moves_back(load.index[axis], d.scanned) for load in read)


def _moves_back(ix: Ix, var: Var) -> bool:
    moves = [(atom, step) for atom, step in ix.terms]
    return len(moves) == 1 and isinstance(moves[0][0], Var) and moves[0][1] == -1 and ix.const == var.size - 1


def _back(ix: Ix, var: Var) -> Ix:
    """The index as far from the end as this one is from the start."""
    return index.total(((ix, -1),), var.size - 1)


def _reversed(d: Def, scans: Mapping[str, Def]) -> Def:
    def rule(e: Expr) -> Expr | None:
        scan = scans.get(e.source) if isinstance(e, Load) else None
        if scan is None or scan.scanned is None or not isinstance(e, Load):
            return None
        axis = scan.axes.index(scan.scanned)
        where = (*e.index[:axis], _back(e.index[axis], scan.scanned), *e.index[axis + 1 :])
        return Load(e.source, where, e.dtype, e.guard)

    d = replace(d, body=transform(d.body, rule))
    if d.name not in scans or d.scanned is None:
        return d
    return replace(
        d, body=substitute(d.body, {d.scanned: _back(index.of(d.scanned), d.scanned)}), reverse=not d.reverse
    )

"""Passes over the definitions of a lowered program: liveness, row layouts, reversed scans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from framesmith_backends.ir.expr import Expr, Load, loads, substitute, transform
from framesmith_backends.ir.program import Def, Program, contiguous_strides, is_dense
from framesmith_backends.ir.reduction_splits import reduces_rows
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size


def needed(program: Program) -> Program:
    """The program without dead definitions and calls; `kept` are the definitions calls or outputs use."""
    used: set[str] = set()
    kept: set[str] = set()
    stack = [name for name in program.outputs if isinstance(name, str)]
    stack += [need for call in program.calls.values() if call.effect for need in (call.name, *call.needs)]
    kept.update(stack)
    stack += [d.name for d in program.defs.values() if d.failure is not None]
    stack += [call.name for call in program.calls.values() if call.may_fail]
    while stack:
        name = stack.pop()
        if name in used:
            continue
        used.add(name)
        if name in program.defs:
            stack += [load.source for load in loads(program.defs[name].body)]
            stack += program.numbers_for(program.defs[name])
        elif name in program.calls:
            needs = program.calls[name].needs
            kept.update(needs)
            stack += [*needs, *program.numbers_for(program.calls[name])]
    defs = {name: d for name, d in program.defs.items() if name in used}
    calls = {name: c for name, c in program.calls.items() if name in used}
    made = replace(program, defs=defs, calls=calls, kept=kept & set(program.defs))
    return program if made == program else made


def use_row_layouts(program: Program) -> Program:
    """The program whose values that only kernels see are contiguous for reductions over their last dimensions.

    In eager mode a value keeps the strides of what it is made of: behind a convolution over time and a permutation, all
    of a transformer's residuals have strided features, and each of its norms reads columns. Where no call of ATen's and
    no output shows such a value, the kernel that makes it transposes it once.
    """
    wanted: set[str] = set()
    columns: set[str] = set()
    for d in program.defs.values():
        for load in loads(d.body) if d.reduced else ():
            made = program.defs.get(load.source)
            if made is not None:
                (wanted if reduces_rows(load.index, d.reduced, made.layout) else columns).add(made.name)
    changed = {
        name: replace(program.defs[name].layout, strides=contiguous_strides(program.defs[name].layout.shape))
        for name in wanted - columns
        if name not in program.kept and _may_lie_otherwise(program, program.defs[name])
    }
    if not changed:
        return program
    defs = {name: replace(d, layout=changed[name]) if name in changed else d for name, d in program.defs.items()}
    return replace(program, defs=defs, layouts=program.layouts | changed)


def _may_lie_otherwise(program: Program, d: Def) -> bool:
    plain = d.updates is None and d.buffer is None and d.failure is None and d.name not in program.alone
    return plain and is_dense(d.layout) and d.layout.strides != contiguous_strides(d.layout.shape)


def reverse_scans(program: Program) -> Program:
    """The program with those scans reversed that are only read from their end on: readers are at the same point then.

    The derivative of a cumulative sum is a flip, a cumulative sum and a flip: one reversed scan, all in one kernel.
    """
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
    axis, last = d.axes.index(d.scanned), d.scanned.size - 1
    return bool(read) and all(_moves_back(load.index[axis], last) for load in read)


def _moves_back(ix: Ix, last: Size) -> bool:
    return len(ix.terms) == 1 and isinstance(ix.terms[0][0], Var) and ix.terms[0][1] == -1 and ix.const == last


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

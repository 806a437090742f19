"""Split a reduction with few results and many elements in two, so that its first half has parallel rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Load, loads, substitute
from framesmith_backends.ir.program import Def, Layout, Program, contiguous_strides
from framesmith_backends.ir.reduction_splits import Split, column_split, lies_along, split_of
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import hint, numel
from framesmith_backends.target import Target


def split_reductions(program: Program, target: Target, in_parts: Collection[str] = ()) -> Program:
    """Return the program with long reductions in two; those named `in_parts` by the target's row-column policy."""
    read: dict[object, int] = {}  # through the same points of a buffer: such reductions are split in the same way
    for d in program.defs.values():
        for points in _points(d):
            read[points] = max(read.get(points, 0), _read(d))
    defs: dict[str, Def] = {}
    layouts = dict(program.layouts)
    for d in program.defs.values():
        most = max((read[points] for points in _points(d)), default=0)
        lane = None if d.reduction is None else lies_along(d.body, program.layouts, d.domain)
        cut = _cut(d, lane, most, target, d.name in in_parts)
        if cut is None:
            defs[d.name] = d
            continue
        first, second = _halves(d, cut, lane)
        defs[first.name], defs[second.name] = first, second
        layouts[first.name] = first.layout
    return program if len(defs) == len(program.defs) else replace(program, defs=defs, layouts=layouts)


def _points(d: Def) -> set[object]:
    """Return the sources that the definition reduces, with its points."""
    return {(load.source, d.domain, d.reduced) for load in loads(d.body)} if d.reduction is not None else set()


def _read(d: Def) -> int:
    """Return the bytes read for each reduced element."""
    read = [load for load in loads(d.body) if any(index.variables(ix) & d.reduced for ix in load.index)]
    return sum(DTYPES[load.dtype].itemsize for load in read)


def _cut(d: Def, lane: Var | None, read: int, target: Target, in_turn: bool) -> Split | None:
    """The split of the reduced variables, for programs that take rows in turn or others; None if it stays whole."""
    reduced = [v.size for v in d.domain if v in d.reduced]
    if in_turn and target.row_column is not None:
        return column_split(reduced, target.row_column)
    if d.reduction is None or hint(numel(v.size for v in d.domain)) < target.split.many:
        return None
    in_columns = (lane or d.domain[-1]) in d.kept
    return split_of(reduced, numel(v.size for v in d.kept), in_columns, read, target.split)


def _halves(d: Def, cut: Split, lane: Var | None) -> tuple[Def, Def]:
    """Both halves. Where operands lie along a variable that stays, the first half's results lie along it, too."""
    loops = [v for v in d.domain if v in d.reduced]
    whole, parts = [loops[k] for k in cut.whole], {loops[k]: n for k, n in cut.parts.items()}
    values: dict[Var, Ix] = {}
    domain: list[Var] = []
    outer: list[Var] = []
    reduced: set[Var] = set()
    for var in d.domain:
        if var in parts:
            high, low, values[var] = index.halves_of(var, parts[var], var.size // parts[var])
            domain += [high, low]
            outer.append(high)
            reduced.add(low)
        else:
            domain.append(var)
            if var in whole:
                outer.append(var)
            elif var in d.reduced:
                reduced.add(var)
    axes = (*outer, *d.kept)
    if lane in axes:
        axes = (*(v for v in axes if v is not lane), lane)
    shape = tuple(v.size for v in axes)
    name = f"{d.name}.part"
    layout = Layout(shape, contiguous_strides(shape), d.dtype, d.layout.device)
    first = Def(
        name, layout, tuple(domain), axes, substitute(d.body, values), d.reduction, frozenset(reduced),
        d.origin, d.position, first_half_of=d.name,
    )  # fmt: skip
    again = Load(name, tuple(index.of(v) for v in axes), d.dtype)
    second = replace(d, domain=axes, body=again, reduced=frozenset(outer))
    return first, second

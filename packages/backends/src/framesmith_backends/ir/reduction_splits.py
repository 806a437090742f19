"""Splits of reductions with few results, so that all threads have work.

Splits depend on sizes, layouts and bytes read, never on the number of threads, so that results do not either.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from framesmith_backends.ir.expr import Expr, loads
from framesmith_backends.ir.program import Layout, has_channels_last
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, hint, numel
from framesmith_backends.target import SLACK, RowColumnPolicy, SplitPolicy


@dataclass(frozen=True, slots=True)
class Split:
    """Split loops by position: `whole` ones, of which each step is a part, and one with its number of parts."""

    whole: tuple[int, ...]
    parts: dict[int, int]


def split_of(reduced: Sequence[Size], kept: Size, in_columns: bool, read: int, by: SplitPolicy) -> Split | None:
    """Return the split of a reduction over loops of these sizes, if any; `in_columns` where results are adjacent.

    `read` are the bytes read for an element.
    """
    results = hint(kept)
    elements = results * hint(numel(reduced))
    units = results // by.columns if in_columns else results
    if elements < by.many or units >= by.few or elements * read < by.least * units:
        return None
    wanted = max(2, min(by.wanted, elements // by.fewest) // max(units, 1))
    if by.balanced and results > 1:
        wanted = min(wanted, max(2, math.isqrt(elements // results // 2)))
    return _split(reduced, wanted, SLACK * wanted if by.balanced else elements, by.most_parts)


def column_split(reduced: Sequence[Size], by: RowColumnPolicy) -> Split | None:
    """Return the split of a column reduction in one pass with a row reduction; None with few rows."""
    rows = numel(reduced)
    if not isinstance(rows, int) or rows < by.least * by.least_rows:
        return None
    wanted = max(min(by.parts, rows // by.least_rows), 1 if by.most_rows is None else -(-rows // by.most_rows))
    most = 4 * max(by.parts, wanted)
    return _split(reduced, wanted, most, most)


def _split(reduced: Sequence[Size], wanted: int, most: int, most_parts: int) -> Split | None:
    """Outer loops first: whole ones, and parts of the next, until there are at least as many as wanted."""
    whole: list[int] = []
    made = 1
    loops = [(at, size) for at, size in enumerate(reduced) if size != 1]
    for at, size in loops:
        parts = _number_of_parts(size, -(-wanted // made), min(most // made, most_parts))
        if parts is not None:
            return Split(tuple(whole), {at: parts})
        if made * hint(size) <= most:
            whole.append(at)
            made *= hint(size)
        if made >= wanted:
            break
    if whole and len(whole) == len(loops):
        whole.pop()  # a part has more than one element
    return Split(tuple(whole), {}) if whole else None


def _number_of_parts(size: Size, wanted: int, most: int) -> int | None:
    """Return the least number of equal parts of the loop, at least as many as wanted, if any."""
    if not isinstance(size, int) or wanted < 2:
        return None
    return next((k for k in range(wanted, min(size // 2, most) + 1) if size % k == 0), None)


def lies_along(body: Expr, layouts: Mapping[str, Layout], variables: Sequence[Var]) -> Var | None:
    """Return the variable along which the first load that has one is contiguous."""
    for load in loads(body):
        strides = layouts[load.source].strides if load.source in layouts else ()
        flat = index.total(zip(load.index, strides, strict=True)) if strides else index.ZERO
        for var in variables:
            if index.coefficient(flat, var) == 1:
                return var
    return None


def reduces_rows(where: Sequence[Ix], reduced: Collection[Var], layout: Layout) -> bool:
    """Whether a load at `where` is reduced over its last dimensions and no others, but not over all of them.

    Channels-last tensors have no rows: convolutions want them so, and their columns are read as fast.
    """
    if has_channels_last(layout):
        return False
    over = [
        any(var in reduced for var in index.variables(ix))
        for ix, size in zip(where, layout.shape, strict=True)
        if size != 1
    ]
    return bool(over) and over[-1] and not over[0] and over == sorted(over)

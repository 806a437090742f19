"""Index-set splitting of loops with conditions on their variable, as of concatenations.

Within an interval the conditions are decided. Intervals of one size are written by one kernel, which reads what they
share once; others by a kernel each, where that is worth it. Along the lanes, the intervals of a row may also follow
each other in one kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Const, Expr, Index, Load, Op, cost, loads, transform, walk
from framesmith_backends.ir.kernel import Kernel, RowPass, Store, with_numbers
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import hint, numel
from framesmith_backends.schedule.kernels.loops import arrange, moved

#: So many intervals of one size are written at once.
MOST_AT_ONCE = 8
#: Other intervals become kernels where there are so many of them: two or three conditions cost less than kernels.
MANY_INTERVALS = 4
#: Intervals of fewer elements, or with shorter rows, are not worth a kernel; nor are more of them.
FEWEST_ELEMENTS, SHORTEST_ROW, MOST_INTERVALS = 2048, 64, 64
#: The most intervals of a row in one kernel, and of operations in the code of them all.
MOST_IN_ROW, LONGEST_CODE = 6, 400
#: An interval of so many blocks of lanes is worth another that begins at an aligned block.
LONG_INTERVAL = 8


def split_ranges(kernel: Kernel, separate: bool = True) -> tuple[Kernel, ...]:
    """Return the kernel over its intervals side by side, or, if `separate`, one for each, or as it is."""
    found = _split_points(kernel)
    if found is None:
        return (kernel,)
    var, ends = found
    sizes = {high - low for low, high in pairwise(ends)}
    if len(sizes) == 1 and len(ends) <= MOST_AT_ONCE + 1:
        return (_with_parts(kernel, var, ends[:-1], sizes.pop(), kernel.name),)
    if not separate:
        return (kernel,)
    parts = [(low, high - low, f"{kernel.name}.{k}") for k, (low, high) in enumerate(pairwise(ends))]
    kernels = tuple(_with_parts(kernel, var, [low], size, name) for low, size, name in parts)
    return kernels if len(kernels) >= MANY_INTERVALS and all(map(_is_worth_it, kernels)) else (kernel,)


def _split_points(kernel: Kernel) -> tuple[Var, list[int]] | None:
    """Return the loop with most conditions, and the ends of its intervals."""
    changes = _changes(kernel)
    if not changes:
        return None
    counts = Counter(var for var, _ in changes)
    var = max(counts, key=lambda v: (counts[v], v.name))
    ends = _ends(var, changes)
    return (var, ends) if len(ends) <= MOST_INTERVALS + 1 else None


def _changes(kernel: Kernel) -> set[tuple[Var, int]]:
    """Return the variables and values at which conditions change inside the loops of a kernel that may be split."""
    if len(kernel.passes) != 1 or kernel.row or kernel.checks or kernel.scratch or kernel.passes[0].before:
        return set()
    cuts = {cut for node in walk(*kernel.passes[0].values) if (cut := _changes_at(node)) is not None}
    return {(var, at) for var, at in cuts if isinstance(var.size, int) and 0 < at < var.size}


def _ends(var: Var, changes: set[tuple[Var, int]]) -> list[int]:
    return sorted({0, hint(var.size), *(at for one, at in changes if one is var)})


def along_lanes(kernel: Kernel, lanes: int) -> list[tuple[Kernel, int]]:
    """Return kernels for the intervals of a row in order, each with its number of lanes; one if it is not split.

    An interval of one element has no lanes. The last lanes of an interval may be computed once more.
    """
    whole, lane, changes = [(kernel, lanes)], kernel.lane, _changes(kernel)
    if lane is None or all(var is not lane for var, _ in changes):
        return whole
    ends = _in_step(kernel, lanes, _ends(lane, changes))
    sizes = [high - low for low, high in pairwise(ends)]
    if len(sizes) > MOST_IN_ROW or cost(*kernel.passes[0].values) * len(sizes) > LONGEST_CODE:
        return whole
    widths = [min(lanes, 1 << (size.bit_length() - 1)) for size in sizes]
    blocks = sum(-(-size // width) for size, width in zip(sizes, widths, strict=True))
    if blocks > 2 * (hint(lane.size) // lanes + 1):
        return whole
    return [
        (_interval(kernel, lane, low, size), width) for low, size, width in zip(ends[:-1], sizes, widths, strict=True)
    ]


def _in_step(kernel: Kernel, lanes: int, ends: list[int]) -> list[int]:
    """The ends, and more of them, so that blocks of long intervals touch as few cache lines as possible."""
    store = kernel.passes[0].stores[0].index
    others = [store.const, *(step for var, step in store.terms if var is not kernel.lane)]
    if any(not isinstance(step, int) or step % lanes for step in others):
        return ends
    long = [low for low, high in pairwise(ends) if high - low >= LONG_INTERVAL * lanes]
    return sorted({*ends, *(-(-low // lanes) * lanes for low in long)})


def _interval(kernel: Kernel, lane: Var, start: int, size: int) -> Kernel:
    """The kernel for so many of its lanes, in the loops that it has."""
    own = Var(f"{lane.name}.{start}", size)
    there = index.const(start) if size == 1 else index.add(index.of(own), index.const(start))
    one = _pass_at(kernel, {lane: there})
    outer = tuple(own if v is lane else v for v in kernel.outer if v is not lane or size != 1)
    return replace(kernel, outer=outer, passes=(one,), lane=None if size == 1 else own)


def _changes_at(e: Expr) -> tuple[Var, int] | None:
    """The loop variable, and its first value for which a comparison is another one than for those before."""
    if not isinstance(e, Op) or e.name not in ("lt", "ge"):
        return None
    left, right = e.args
    if not isinstance(left, Index) or not isinstance(right, Const) or len(left.ix.terms) != 1:
        return None
    [(atom, step)], shift = left.ix.terms, left.ix.const
    if not isinstance(atom, Var) or step != 1 or not isinstance(shift, int):
        return None
    return atom, int(right.value) - shift


def _with_parts(kernel: Kernel, var: Var, starts: Sequence[int], size: int, name: str) -> Kernel:
    """Return the kernel over intervals of one size that begin at `starts`: all their stores at each point."""
    own = Var(f"{var.name}p", size)
    stores: list[Store] = []
    for start in starts:
        stores += _pass_at(kernel, {var: index.add(index.of(own), index.const(start))}).stores
    outer = tuple(own if v is var else v for v in kernel.outer if v is not var or size != 1)
    known = {load.source for load in loads(*(s.value for s in stores))} | {s.buffer for s in stores}
    params = tuple(param for param in kernel.params if param.name in known)
    found = arrange(replace(kernel, name=name, outer=outer, passes=(RowPass((), (), tuple(stores)),), params=params))
    return with_numbers(found) if kernel.numbers else found


def _pass_at(kernel: Kernel, values: Mapping[Var, Ix]) -> RowPass:
    """The kernel's pass with these values of its loops, without the conditions that are decided then."""
    [one] = moved(kernel, values).passes
    return one.rewritten(decided, lambda s: Store(s.buffer, s.index, decided(s.value)))


def _is_worth_it(kernel: Kernel) -> bool:
    elements = numel(v.size for v in kernel.outer)
    return hint(elements) >= FEWEST_ELEMENTS and kernel.lane is not None and hint(kernel.lane.size) >= SHORTEST_ROW


def decided(root: Expr) -> Expr:
    """The expression without the conditions that hold, or do not, for all values of the loop variables."""
    return transform(root, _decided)


def _decided(e: Expr) -> Expr | None:
    if isinstance(e, Load) and isinstance(e.guard, Const):
        zero = Const(False if DTYPES[e.dtype].kind == "b" else 0, e.dtype)
        return Load(e.source, e.index, e.dtype) if e.guard.value else zero
    if not isinstance(e, Op):
        return None
    if e.name == "where" and isinstance(e.args[0], Const):
        return e.args[1] if e.args[0].value else e.args[2]
    if e.name in ("and", "or") and e.dtype == "b1":
        sides = ((known, other) for known, other in (e.args, e.args[::-1]) if isinstance(known, Const))
        return next((other if known.value == (e.name == "and") else known for known, other in sides), None)
    known = _compared(e)
    return None if known is None else Const(known, "b1")


def _compared(e: Op) -> bool | None:
    """Return the result of a comparison of an index with a number, if it is the same for all values."""
    left, right = e.args if e.name in ("lt", "ge") else (None, None)
    if not isinstance(left, Index) or not isinstance(right, Const):
        return None
    low, high = index.bounds(left.ix)
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    if high < right.value:
        return e.name == "lt"
    return e.name == "ge" if low >= right.value else None

"""The place of definitions in a group's loops: the loops that hold them, and each one's point there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.program import Def, Program
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, hint, numel
from framesmith_backends.schedule.fusion.domains import Sizes, flags_of, merged_axes, refine, variables_of

#: For each of a group's loops whether it is reduced or scanned; None while none is.
Flags = tuple[bool, ...] | None


def placement(sizes: Sizes, reduced: Flags, d: Def) -> tuple[Sizes, Flags] | None:
    """The sizes and flags of a group's loops with the definition among them; None if the domains do not fit."""
    own = tuple(v.size for v in d.domain)
    flags = tuple(v in d.in_rows for v in d.domain)
    refined = refine(own, sizes)
    if refined is not None:
        old = None if reduced is None else flags_of(sizes, reduced, refined)
        if not d.in_rows:
            return refined, old
        new = flags_of(own, flags, refined)
        return (refined, new) if old is None or old == new else None
    if d.in_rows or d.failure is not None or reduced is None:
        return None  # a check is made at every point
    outer = refine(own, tuple(size for size, flag in zip(sizes, reduced, strict=True) if not flag))
    return None if outer is None else _with_outer(sizes, reduced, outer)


def _with_outer(sizes: Sizes, reduced: tuple[bool, ...], outer: Sizes) -> tuple[Sizes, Flags]:
    """The sizes and flags with the axes that are not reduced replaced by their refinement."""
    refined: list[Size] = []
    flags: list[bool] = []
    rest = list(reversed(outer))
    for size, flag in zip(reversed(sizes), reversed(reduced), strict=True):
        covered: Size = 1
        while covered != size:
            step = size if flag else rest.pop(0)
            covered *= step
            refined.append(step)
            flags.append(flag)
    return tuple(reversed(refined)), tuple(reversed(flags))


def positions(d: Def, sizes: Sizes, reduced: Flags) -> dict[Var, Ix]:
    """Each domain variable of a member as an expression in the group's variables."""
    variables = variables_of(sizes)
    own = tuple(v.size for v in d.domain)
    if numel(own) == numel(sizes) and refine(own, sizes) == sizes:
        return dict(zip(d.domain, merged_axes(own, sizes, variables), strict=True))
    flags = reduced or (False,) * len(sizes)
    outer = [v for v, flag in zip(variables, flags, strict=True) if not flag]
    where = merged_axes(own, tuple(v.size for v in outer), outer)
    return dict(zip(d.domain, where, strict=True))


def why_not_same_point(others: Iterable[Def], d: Def, sizes: Sizes, reduced: Flags) -> str | None:
    """Why the definition does not read the others at its own point alone, in loops of these sizes and flags."""
    members = {m.name: m for m in others}
    mine: dict[Var, Ix] | None = None
    for load in loads(d.body):
        member = members.get(load.source)
        if member is None:
            continue
        if load.guard is not None:
            return f"it reads {member.name} under a condition"
        if mine is None:
            mine = positions(d, sizes, reduced)
        theirs = positions(member, sizes, reduced)
        for axis, ix in zip(member.axes, load.index, strict=True):
            expected = index.ZERO if axis is None else theirs[axis]
            if index.substitute(ix, mine) is not expected:
                return f"it reads {member.name} at another point"
    return None


def why_not_scanned(program: Program, members: Sequence[Def], reduced: Flags) -> str | None:
    """Why the scans among the members cannot be in one kernel with these flags of its loops, or None."""
    directions = {m.reverse for m in members if m.scan is not None}
    if any(m.name in program.column_scans for m in members) and any(m.reduction or m.failure for m in members):
        return "a scan down columns is in a kernel without reductions and checks"
    if directions and sum(reduced or ()) != 1:
        return "what is scanned would be cut"
    return "it is scanned in both directions" if len(directions) > 1 else None


def is_too_serial(sizes: Sizes, reduced: Flags) -> bool:
    """Whether loops of these sizes and flags have few points outside of what is reduced."""
    if reduced is None:
        return False
    outer = numel(s for s, flag in zip(sizes, reduced, strict=True) if not flag)
    return hint(outer) < 4 and hint(numel(sizes)) > 1 << 15

"""A group as a kernel: members expanded into each other, passes assigned, indices flattened to memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr, Load, Recurrence, Ref, cost, loads, transform, walk
from framesmith_backends.ir.expr import substitute as substitute_expr
from framesmith_backends.ir.kernel import (
    Accumulate,
    Check,
    Kernel,
    RowPass,
    Scan,
    Scratch,
    Store,
    params_of,
    with_numbers,
)
from framesmith_backends.ir.ops import STEPS
from framesmith_backends.ir.program import Def, Program
from framesmith_backends.ir.recurrences import parts, with_carried
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import hint, numel
from framesmith_backends.schedule.fusion.domains import flat_index, variables_of
from framesmith_backends.schedule.fusion.group import Group
from framesmith_backends.schedule.fusion.placement import positions
from framesmith_backends.schedule.kernels.loops import arrange

# A value at least this expensive is kept for a later pass, if a row of such values is no longer than this.
KEEP_COST, LONGEST_SCRATCH, SCRATCH_BYTES = 12, 65536, 1 << 19

# Of rows that lie in more pages than processors keep addresses of (1,536 and more), tiles of lanes are walked instead,
# which read along memory: what is not kept is computed again. (Softmax down columns of 2048x1024: 0.9 ms for 2.1.)
MOST_PAGES, PAGE = 1536, 4096


@dataclass(slots=True)
class Building:
    """One group being built. `first` is the pass in which a member can be computed (a reduction: accumulated).

    `carried` has the names of what its scans carry, by recurrences over the loops of the kernel, and their directions.
    """

    program: Program
    group: Group
    stored: frozenset[str]
    where: dict[str, dict[Var, Ix]] = field(default_factory=dict)
    members: dict[str, Def] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    uses: dict[str, set[int]] = field(default_factory=dict)
    row: tuple[Var, ...] = ()
    down: tuple[Var, ...] = ()
    scratch: dict[str, Scratch] = field(default_factory=dict)
    memo: dict[tuple[str, int], Expr] = field(default_factory=dict)
    carried: dict[Recurrence, tuple[str, bool]] = field(default_factory=dict)


def build_kernel(name: str, program: Program, group: Group, stored: frozenset[str], scratch: bool = True) -> Kernel:
    """The kernel that computes the group's members and stores those in `stored`."""
    b = Building(program, group, stored)
    variables = variables_of(group.sizes)
    b.row, b.down = (tuple(compress(variables, flags or ())) for flags in (group.reduced, group.down))
    outer = tuple(v for v in variables if v not in b.row)
    for d in group.members:
        b.members[d.name] = d
        b.where[d.name] = positions(d, group.sizes, group.reduced)
    _assign_passes(b)
    if scratch:
        _choose_scratch(b)
    passes = tuple(_make_pass(b, p) for p in range(_last_pass(b) + 1))
    after = tuple(Store(d.name, _address(b, d), Ref(d.name, d.dtype)) for d in group.members if _goes_down(b, d))
    params = params_of(passes, after, own={s.name for s in b.scratch.values()})
    kernel = Kernel(name, params, outer, b.row, None, passes, tuple(b.scratch.values()), down=b.down, after=after)
    kernel = arrange(kernel)
    if kernel.scratch and kernel.lane in kernel.outer and _pages(kernel) > MOST_PAGES:
        return build_kernel(name, program, group, stored, scratch=False)
    return with_numbers(kernel) if program.is_symbolic else kernel


def _pages(kernel: Kernel) -> int:
    """Return the most pages that one load of a row spans."""
    steps = [0]
    for load in loads(*(value for one in kernel.passes for value in one.values)):
        found = [index.coefficient(load.index[0], var) for var in kernel.row]
        steps += [abs(hint(step)) * DTYPES[load.dtype].itemsize for step in found if step is not None]
    elements = hint(numel(v.size for v in kernel.row))
    return elements * min(max(steps), PAGE) // PAGE


def _is_full(b: Building, d: Def) -> bool:
    """Whether the member runs over the row loops (a reduction's result does not)."""
    return d.reduction is None and (not b.row or numel(v.size for v in d.domain) == numel(b.group.sizes))


def _goes_down(b: Building, d: Def) -> bool:
    """Whether the member is reduced down columns, in a kernel that reduces rows as well."""
    return bool(b.down) and any(index.variables(b.where[d.name][v]) & {*b.down} for v in d.reduced)


def _internal(b: Building, d: Def) -> list[Def]:
    return [b.members[load.source] for load in loads(d.body) if load.source in b.members]


def _assign_passes(b: Building) -> None:
    for d in b.group.members:
        b.first[d.name] = max((b.first[m.name] + (m.reduction is not None) for m in _internal(b, d)), default=0)
        b.uses[d.name] = set()
    for d in reversed(b.group.members):
        if d.reduction is not None or d.failure is not None or d.name in b.stored:
            b.uses[d.name].add(b.first[d.name])
        for m in _internal(b, d):
            b.uses[m.name] |= b.uses[d.name]


def _choose_scratch(b: Building) -> None:
    """Give a scratch row to members that are expensive and used in several passes."""
    elements = numel(v.size for v in b.row)
    if hint(elements) > LONGEST_SCRATCH:
        return
    room = SCRATCH_BYTES
    for d in b.group.members:
        if len(b.uses[d.name]) < 2 or not _is_full(b, d) or d.name in b.stored:
            continue
        if cost(_expand_member(b, d, min(b.uses[d.name]))) < KEEP_COST:
            continue
        # A scratch holds the value in the type it is computed in; 8 bytes is the largest.
        room -= hint(elements) * 8
        if room >= 0:
            b.scratch[d.name] = Scratch(Scratch.name_for(d.name), d.dtype, elements)
            b.memo.clear()
    b.memo.clear()


def _last_pass(b: Building) -> int:
    return max(
        b.first[d.name] + (d.reduction is not None and d.name in b.stored and not _goes_down(b, d))
        for d in b.group.members
    )


def _make_pass(b: Building, number: int) -> RowPass:
    before: list[Store] = []
    reductions: list[Accumulate] = []
    stores: list[Store] = []
    checks: list[Check] = []
    columns: list[Accumulate] = []
    for d in b.group.members:
        if _goes_down(b, d):
            if b.first[d.name] == number:
                columns.append(Accumulate(d.name, str(d.reduction), _expand_body(b, d, number)))
            continue
        if d.failure is not None and b.first[d.name] == number:
            checks.append(Check(_expand_body(b, d, number), d.failure))
        if d.reduction is not None and b.first[d.name] == number:
            reductions.append(Accumulate(d.name, d.reduction, _expand_body(b, d, number)))
        if d.name in b.scratch and min(b.uses[d.name]) == number:
            value = _expand_body(b, d, number)
            stores.append(Store(b.scratch[d.name].name, _row_index(b), value))
        if d.name not in b.stored:
            continue
        if d.reduction is not None and b.first[d.name] + 1 == number:
            before.append(Store(d.name, _address(b, d), Ref(d.name, d.dtype)))
        elif d.reduction is None and b.first[d.name] == number:
            place = stores if _is_full(b, d) else before
            value = _expand_member(b, d, number)
            where = _address(b, d) if d.updates is None else _updated(d, value)
            place.append(Store(d.buffer or d.name, where, value))
    made = RowPass(tuple(before), tuple(reductions), tuple(stores), tuple(checks), tuple(columns))
    return replace(made, scans=_scans(b, made.values, number))


def _scans(b: Building, values: Sequence[Expr], number: int) -> tuple[Scan, ...]:
    """The scans that the values need, and those that these need, in order."""
    found: dict[str, Scan] = {}
    waiting = list(values)
    while waiting:
        for node in walk(waiting.pop()):
            scan = _scan(b, node.name, number) if isinstance(node, Ref) and node.name not in found else None
            if scan is not None:
                found[scan.name] = scan
                waiting.append(scan.value)
    names = (*(name for name, _ in b.carried.values()), *(d.name for d in b.group.members))
    return tuple(found[name] for name in names if name in found)


def _scan(b: Building, name: str, number: int) -> Scan | None:
    """The scan of that name in pass `number`; None where it is a reduction."""
    for one, (carried, reverse) in b.carried.items():
        if carried == name:
            start = transform(one.starts[one.which], lambda e: _resolve(b, e, number))
            return Scan(name, STEPS, _step(b, one, one.which, reverse, number), reverse, start)
    d = b.members[name]
    return None if d.scan is None else Scan(name, d.scan, _expand_body(b, d, number), d.reverse)


def _step(b: Building, e: Recurrence, which: int, reverse: bool, number: int) -> Expr:
    """The value that a step makes of what is carried to it."""
    before = [_carried(b, one, reverse) for one in parts(e)]
    resolved = transform(e.steps[which], lambda part: _resolve(b, part, number))
    return with_carried(resolved, lambda one: before[one.number])


def _carried(b: Building, one: Recurrence, reverse: bool) -> Ref:
    """The value that a recurrence carries to a point; equal recurrences are one."""
    name, _ = b.carried.setdefault(one, (f"carried:{len(b.carried)}", reverse))
    return Ref(name, one.dtype)


def _row_index(b: Building) -> Ix:
    return flat_index(b.row)


def _address(b: Building, d: Def) -> Ix:
    """Return the offset of the member's element at the current point in its buffer."""
    where = b.where[d.name]
    return index.total(
        (where[axis], stride) for axis, stride in zip(d.axes, d.layout.steps, strict=True) if axis is not None
    )


def _updated(d: Def, value: Expr) -> Ix:
    """Return the offset at which a member updates what another kernel wrote: that of its read."""
    [(place,)] = {load.index for load in loads(value) if load.source == d.name}
    return place


def _expand_member(b: Building, d: Def, number: int) -> Expr:
    """The member's value at the current point in pass `number`."""
    if d.reduction is not None:
        return Ref(d.name, d.dtype)
    if _is_full(b, d) and number > min(b.uses[d.name], default=number):
        # Of rows that are taken in turn the next one is read before this one is written: nothing is read back.
        if d.name in b.stored and number > b.first[d.name] and not b.down:
            return Load(d.name, (_address(b, d),), d.dtype)
        if d.name in b.scratch:
            return Load(b.scratch[d.name].name, (_row_index(b),), d.dtype)
    if d.scan is not None and d.scan != STEPS:
        return Ref(d.name, d.dtype)
    return _expand_body(b, d, number)


def _expand_body(b: Building, d: Def, number: int) -> Expr:
    key = (d.name, number)
    found = b.memo.get(key)
    if found is None:
        moved = substitute_expr(d.body, b.where[d.name])
        if not isinstance(moved, Recurrence):
            found = transform(moved, lambda e: _resolve(b, e, number))
        elif moved.after:
            found = _step(b, moved, moved.which, d.reverse, number)
        else:
            found = _carried(b, parts(moved)[moved.which], d.reverse)
        b.memo[key] = found
    return found


def _resolve(b: Building, e: Expr, number: int) -> Expr | None:
    if not isinstance(e, Load):
        return None
    member = b.members.get(e.source)
    if member is not None:
        return _expand_member(b, member, number)
    steps = b.program.layouts[e.source].steps
    flat = index.total(zip(e.index, steps, strict=True))
    made = b.program.defs.get(e.source)
    return Load(e.source if made is None else made.buffer or e.source, (flat,), e.dtype, e.guard)

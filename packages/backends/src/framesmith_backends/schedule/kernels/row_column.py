"""Row and column reduction in one pass: each program of the kernel takes rows in turn.

The backward pass of a norm reduces every row, and sums down all columns for its weight and bias. As two kernels these
read the same large buffers twice. A program that holds a row can add it to sums down the columns, which it keeps until
its last row. Each program's sums are results of the first half of a reduction cut in two; design 0026.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import loads, substitute
from framesmith_backends.ir.program import Def, Program
from framesmith_backends.ir.reduction_splits import column_split
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import numel
from framesmith_backends.schedule.fusion import group as fusion
from framesmith_backends.schedule.fusion.domains import Sizes, flags_of, refine, variables_of
from framesmith_backends.schedule.fusion.group import Group, Grouping, Node
from framesmith_backends.schedule.fusion.placement import positions, why_not_same_point
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.target import BYTES_IN_TURN, LEAST_COLUMNS, RowColumnPolicy

#: Of registers: rows are no longer than this, and have no more bytes at a point: what is read, and sums.
LONGEST_ROW, MOST_BYTES = 4096, 48
#: Longer rows are only worth it while others are on their way.
SHORT_ROW = 2048
#: Of a cache: bytes of all sums that a thread adds to.
MOST_BYTES_OF_SUMS = 1 << 16

Flags = tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """Axes of both groups, which of them are reduced within rows, and which down columns."""

    sizes: Sizes
    row: Flags
    down: Flags

    def numel(self, flags: Iterable[bool]) -> int:
        found = numel(compress(self.sizes, flags))
        assert isinstance(found, int)
        return found

    def numel_of_neither(self) -> int:
        """The number of programs: points along the axes that neither reduction has."""
        return self.numel(not (r or d) for r, d in zip(self.row, self.down, strict=True))


class Near:
    """The groups that read a buffer which another one reads or makes."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._at: dict[str, list[int]] = {}
        self._readers: dict[str, set[str]] = {}
        for k, one in enumerate(groups):
            for name in _touched(one):
                self._at.setdefault(name, []).append(k)
            for d in one.members:
                for load in loads(d.body):
                    self._readers.setdefault(load.source, set()).add(d.name)

    def __call__(self, group: Group) -> Iterator[Group]:
        """These groups in the order in which they were given, each once; among them may be the group itself."""
        return (self._groups[k] for k in sorted({k for name in _touched(group) for k in self._at.get(name, ())}))

    def stored(self, group: Group, kept: Collection[str]) -> frozenset[str]:
        """The members that need memory: those kept, and those that others read."""
        own = {d.name for d in group.members}
        return frozenset(name for name in own if name in kept or not self._readers.get(name, own) <= own)


def _touched(group: Group) -> set[str]:
    """Return the names of the group's members and of what they read."""
    return group.reads.union(d.name for d in group.members)


def reduce_rows_and_columns(
    program: Program,
    nodes: list[Node],
    cut: Callable[[frozenset[str]], tuple[Program, list[Node]]],
    by: RowColumnPolicy,
) -> tuple[Program, list[Node]]:
    """The program and its kernels, those that fit reducing rows and columns at once.

    `cut` gives them with column reductions of these names cut for that. What does not come to share a kernel then is
    cut as before.
    """
    wanted = _wanted(program, nodes, by)
    while wanted:
        other, found = cut(wanted)
        found, done = _merged(other, found, by)
        if wanted <= done:
            return other, found
        wanted &= done
    return program, nodes


def _wanted(program: Program, nodes: list[Node], by: RowColumnPolicy) -> frozenset[str]:
    """Return the column reductions that may share kernels with rows once they are split.

    Unsplit sums may have readers in their kernel: only a trial decides.
    """
    if by.in_registers:
        return _merged(program, nodes, replace(by, least=1, most_rows=None))[1]
    groups = [node for node in nodes if isinstance(node, Group) and node.reduced is not None]
    near = Near(groups)
    found: set[str] = set()
    for one in filter(_reduces_rows, groups):
        for other in near(one):
            shape = _common(one, other)
            sums = [] if shape is None else [d for d in other.members if _may_have_programs(d, shape, by)]
            if shape is not None and sums and _reads_in_common(one, other, shape):
                found.update(d.first_half_of or d.name for d in sums)
    return frozenset(found)


def _may_have_programs(d: Def, shape: Shape, by: RowColumnPolicy) -> bool:
    """Whether the definition is a sum that is cut when it is asked for, or of which there are enough already."""
    if not _is_sum(d):
        return False
    is_cut = d.first_half_of is not None or column_split([v.size for v in d.domain if v in d.reduced], by) is not None
    return is_cut or shape.numel_of_neither() >= by.least


def _merged(program: Program, nodes: list[Node], by: RowColumnPolicy) -> tuple[list[Node], frozenset[str]]:
    """Kernels merged so that each has enough programs, and the reductions down columns that are in them."""
    pairs = [node for node in nodes if isinstance(node, Group) and node.reduced is not None]
    if len(pairs) < 2:
        return nodes, frozenset()
    g = Grouping(program, {node.number: _copied(node) for node in nodes})
    done: set[str] = set()
    near = Near([node for node in g.nodes.values() if isinstance(node, Group)])
    for number in [node.number for node in pairs]:
        rows = g.nodes.get(number)
        if isinstance(rows, Group) and _reduces_rows(rows):
            done |= _with_columns(g, near, rows, by)
    if not done:
        return nodes, frozenset()
    _merge_second_halves(g, done)
    return fusion.ordered(g), frozenset(program.defs[name].first_half_of or name for name in done)


def _copied(node: Node) -> Node:
    """The node as one that may be changed, in case that nothing comes of it."""
    return replace(node, members=list(node.members)) if isinstance(node, Group) else replace(node)


def _reduces_rows(group: Group) -> bool:
    """Whether a group reduces its last axes and no others."""
    flags = group.reduced or ()
    return any(flags) and not all(flags) and flags == tuple(sorted(flags))


def _with_columns(g: Grouping, near: Near, rows: Group, by: RowColumnPolicy) -> set[str]:
    """Merge column reductions of the same points, and return their names."""
    done: set[str] = set()
    tried = {rows.number}
    waiting = near(rows)
    while (columns := next(waiting, None)) is not None:
        if columns.number in tried or columns.number not in g.nodes:
            continue
        tried.add(columns.number)
        shape = _common(rows, columns)
        if shape is not None and _why_not_together(g, near, rows, columns, shape, by) is None:
            together = _together(g.program, rows, columns, shape)
            rows.members, rows.sizes, rows.reduced, rows.down = together.members, shape.sizes, shape.row, shape.down
            rows.position = max(rows.position, columns.position)
            done |= {d.name for d in columns.members if d.reduced}
            fusion.absorb(g, rows, columns)
            waiting = near(rows)
    return done


def _common(rows: Group, columns: Group) -> Shape | None:
    """Axes along which one group reduces rows, and the other columns; None if they have none."""
    if rows is columns or rows.reduced is None or columns.reduced is None or columns.down is not None:
        return None
    if not all(isinstance(size, int) for size in (*rows.sizes, *columns.sizes)):
        return None
    sizes = refine(rows.sizes, columns.sizes)
    if sizes is None:
        return None
    row, down = flags_of(rows.sizes, rows.reduced, sizes), flags_of(columns.sizes, columns.reduced, sizes)
    last = len(sizes) - sum(row)
    first = last - sum(down)
    if first < 0 or not all(row[last:]) or not all(down[first:last]):
        return None  # rows are not right inside of what goes down
    if rows.down is not None and flags_of(rows.sizes, rows.down, sizes) != down:
        return None
    return Shape(sizes, row, down)


def _why_not_together(
    g: Grouping, near: Near, rows: Group, columns: Group, shape: Shape, by: RowColumnPolicy
) -> str | None:
    """Why the two do not become one kernel with enough programs, or None."""
    members = _in_order(g.program, rows, columns)
    if len(members) > fusion.MOST_MEMBERS or rows.cost + columns.cost > fusion.MOST_COST:
        return "together too large"
    if shape.numel(shape.row) < LEAST_COLUMNS or (by.in_registers and shape.numel(shape.row) > LONGEST_ROW):
        return "rows are short or long"
    if shape.numel_of_neither() < by.least:
        return "few programs"
    if by.most_rows is not None and shape.numel(shape.down) > by.most_rows:
        return "many rows would be added up one after another"
    if any(d.failure is not None or d.updates is not None or d.name in g.program.alone for d in members):
        return "checks and updates"
    if any(d.scan is not None for d in members):
        return "scans"
    if problem := _why_not_columns(columns, shape):
        return problem
    sums = {d.name for d in members if _goes_down(d, shape)}
    if any(load.source in sums for d in members for load in loads(d.body)):
        return "something goes on with a sum"
    if fusion.is_between(g, rows, columns) or fusion.is_between(g, columns, rows):
        return "something between the two"
    problems = (why_not_same_point(members, member, shape.sizes, shape.row) for member in members)
    if problem := next(filter(None, problems), None):
        return problem
    if not _reads_in_common(rows, columns, shape):
        return "they read nothing in common"
    return _why_not_held(g.program, near, rows, columns, shape, by)


def _goes_down(d: Def, shape: Shape) -> bool:
    down = {*compress(variables_of(shape.sizes), shape.down)}
    where = positions(d, shape.sizes, shape.row)
    return any(not down.isdisjoint(index.variables(where[v])) for v in d.reduced)


def _why_not_columns(columns: Group, shape: Shape) -> str | None:
    """Sums over rows, and their operands at every point."""
    for d in columns.members:
        if numel(v.size for v in d.domain) != numel(shape.sizes):
            return f"{d.name} is not computed at every point"
        if d.reduced and not _is_sum(d):
            return f"{d.name} is no sum of numbers"
    return None


def _is_sum(d: Def) -> bool:
    return d.reduction == "sum" and DTYPES[d.dtype].kind == "f"


def _reads_in_common(rows: Group, columns: Group, shape: Shape) -> bool:
    """Whether a point of one reads an element that the same point of the other reads or computes."""
    mine, others = (_read_at(group, shape) for group in (rows, columns))
    made, made_there = (
        {d.name for d in group.members if not d.reduced and _is_full(d, shape)} for group in (rows, columns)
    )
    computed = any(source in made for source, _ in others) or any(source in made_there for source, _ in mine)
    return computed or not mine.isdisjoint(others)


def _is_full(d: Def, shape: Shape) -> bool:
    return numel(v.size for v in d.domain) == numel(shape.sizes)


def _read_at(group: Group, shape: Shape) -> set[tuple[str, tuple[Ix, ...]]]:
    """Return the sources and indices of loads that read each element once, at every point."""
    everywhere = {v for v in variables_of(shape.sizes) if v.size != 1}
    found = set()
    for d in group.members:
        if _is_full(d, shape):
            where = positions(d, shape.sizes, shape.row)
            for load in loads(substitute(d.body, where)):
                if everywhere <= {v for ix in load.index for v in index.variables(ix)}:
                    found.add((load.source, load.index))
    return found


def _why_not_held(
    program: Program, near: Near, rows: Group, columns: Group, shape: Shape, by: RowColumnPolicy
) -> str | None:
    """Why no kernel holds a row and the sums: as it has loops of another form, or keeps too much."""
    together = _together(program, rows, columns, shape)
    stored = near.stored(together, program.kept)
    kernel = build_kernel("trial", program, together, stored, scratch=not by.in_registers)
    if not kernel.takes_rows_in_turn:
        return "its loops have another form"
    if not by.in_registers:
        at_a_point = sum(DTYPES[store.value.dtype].itemsize for store in kernel.after)
        return "the sums fill the cache" if at_a_point * shape.numel(shape.row) > MOST_BYTES_OF_SUMS else None
    (lane,) = kernel.row
    bytes_in_turn = sum(DTYPES[load.dtype].itemsize for load in kernel.read_in_turn) * shape.numel(shape.row)
    if shape.numel(shape.row) > SHORT_ROW and bytes_in_turn > BYTES_IN_TURN:
        return "the next rows cannot be on their way, and few programs are at work at once"
    read = {load for one in kernel.passes for load in loads(*one.values) if lane in index.variables(load.index[0])}
    kept = [load.dtype for load in read] + [store.value.dtype for store in kernel.after]
    if sum(DTYPES[DTYPES[dtype].compute].itemsize for dtype in kept) > MOST_BYTES:
        return "too much is held at a point"
    return None


def _together(program: Program, rows: Group, columns: Group, shape: Shape) -> Group:
    members = _in_order(program, rows, columns)
    return replace(rows, members=members, sizes=shape.sizes, reduced=shape.row, down=shape.down)


def _in_order(program: Program, rows: Group, columns: Group) -> list[Def]:
    place = {name: k for k, name in enumerate(program.defs)}
    return sorted([*rows.members, *columns.members], key=lambda d: place[d.name])


def _merge_second_halves(g: Grouping, done: set[str]) -> None:
    """Merge the sums of the parts, which have no other readers, whatever their sizes."""
    halves = [n for n in g.nodes.values() if isinstance(n, Group) and any(
        d.reduced and any(load.source in done for load in loads(d.body)) for d in n.members
    )]  # fmt: skip
    for k, host in enumerate(halves):
        for other in halves[:k]:
            if other.number in g.nodes and fusion.why_not_merge(g, host, other) is None:
                fusion.merge(g, host, other)

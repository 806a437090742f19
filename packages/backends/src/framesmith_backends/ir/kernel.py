"""The kernel form: loops over `outer` (each point on its own) and, inside, passes over the `row` loops.

A pass runs over every point of the row loops, accumulating its reductions and doing its stores; a later
pass may use the results of earlier reductions as `Ref`s. What a pass scans is a `Ref` at the same point of the same
pass, for scans behind it, reductions and stores; there is one row loop then. Statements `before` a pass run once
for each outer point. Stores of a point happen when all its values are known: a pass may read what it writes, at the
same point. `Load` indices are flat: one expression, in elements from the buffer's data pointer.

Of a kernel that also reduces down columns some of the outer loops go `down`, innermost and in order: `columns` of a
pass are combined over these, each point of the row on its own, and stored `after` them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from framesmith_backends.ir.expr import (
    Expr,
    Index,
    Load,
    Number,
    called,
    indirect_parts,
    loads,
    on_buffers,
    symbols_and_numbers,
)
from framesmith_backends.ir.program import Failure
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, Symbol, numel, symbols_of
from framesmith_backends.ir.text import named_text


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer the kernel reads or writes."""

    name: str
    dtype: str
    written: bool


@dataclass(frozen=True, slots=True)
class Scratch:
    """A row of values kept from one pass for a later one, private to one outer point."""

    name: str
    dtype: str
    numel: Size

    @staticmethod
    def name_for(values: str) -> str:
        """The name of the row that holds these values."""
        return f"row.{values}"


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value."""

    buffer: str
    index: Ix
    value: Expr

    def on(self, names: Mapping[str, str]) -> Store:
        """The store, of buffers of other names."""
        where = self.changed_index(lambda e: on_buffers(e, names))
        return Store(names.get(self.buffer, self.buffer), where, on_buffers(self.value, names))

    def changed_index(self, change: Callable[[Expr], Expr]) -> Ix:
        """Return the index with `change` applied to the expressions in it."""
        found = change(Index(self.index))
        assert isinstance(found, Index)
        return found.ix


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Ref(name) is `value` combined over the row loops by the reduction `kind`."""

    name: str
    kind: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Scan:
    """Ref(name) is, at a point of the row loop, `value` combined as `kind` says over all up to it, or from it on.

    With a `start`, of kind `STEPS`, it is what is carried to the point: first that, and each point makes it `value`,
    of what the scans carry to it.
    """

    name: str
    kind: str
    value: Expr
    reverse: bool = False
    start: Expr | None = None

    def rewritten(self, value: Callable[[Expr], Expr]) -> Scan:
        return replace(self, value=value(self.value), start=None if self.start is None else value(self.start))


Named = TypeVar("Named", Param, Scratch, Accumulate, Scan)


@dataclass(frozen=True, slots=True)
class Check:
    """The kernel fails where `holds`, a bool, is false. It goes on all the same: its caller sees it at the end."""

    holds: Expr
    failure: Failure


@dataclass(frozen=True, slots=True)
class RowPass:
    """One run over the row loops; `before` runs once for each outer point, ahead of it."""

    before: tuple[Store, ...]
    reductions: tuple[Accumulate, ...]
    stores: tuple[Store, ...]
    checks: tuple[Check, ...] = ()
    columns: tuple[Accumulate, ...] = ()
    scans: tuple[Scan, ...] = ()

    @property
    def has_loop(self) -> bool:
        return bool(self.reductions or self.stores or self.checks or self.columns)

    @property
    def values(self) -> list[Expr]:
        """All that the pass computes."""
        stored = [s.value for s in (*self.before, *self.stores)]
        scanned, combined = (s.value for s in self.scans), (a.value for a in (*self.reductions, *self.columns))
        starts = (s.start for s in self.scans if s.start is not None)
        return [*stored, *scanned, *starts, *combined, *(c.holds for c in self.checks)]

    def rewritten(self, value: Callable[[Expr], Expr], store: Callable[[Store], Store]) -> RowPass:
        """Return the pass with `value` applied to its values and `store` to its stores."""
        return RowPass(
            tuple(map(store, self.before)),
            tuple(replace(a, value=value(a.value)) for a in self.reductions),
            tuple(map(store, self.stores)),
            tuple(Check(value(c.holds), c.failure) for c in self.checks),
            tuple(replace(a, value=value(a.value)) for a in self.columns),
            tuple(s.rewritten(value) for s in self.scans),
        )


@dataclass(frozen=True, slots=True)
class Kernel:
    """`lane` is the loop variable whose consecutive values are computed side by side; it may be outer or row.

    `numbers` are those known only at the call, which are parameters too. `down` are loops of `outer`, the last of them;
    stores `after` these are of what was combined down columns.
    """

    name: str
    params: tuple[Param, ...]
    outer: tuple[Var, ...]
    row: tuple[Var, ...]
    lane: Var | None
    passes: tuple[RowPass, ...]
    scratch: tuple[Scratch, ...] = ()
    numbers: tuple[Symbol | Number, ...] = ()
    down: tuple[Var, ...] = ()
    after: tuple[Store, ...] = ()

    @property
    def points(self) -> Size:
        return numel(var.size for var in (*self.outer, *self.row))

    @property
    def takes_rows_in_turn(self) -> bool:
        """Whether it reduces rows as well as columns, each row side by side and one after another."""
        return len(self.down) == 1 and len(self.row) == 1 and self.lane is self.row[0] and isinstance(self.points, int)

    @property
    def read_in_turn(self) -> frozenset[Load]:
        """Loads of one value per point of each row, where rows are taken in turn."""
        read = loads(*(value for one in self.passes for value in one.values))
        return frozenset(load for load in read if {*self.down, *self.row} <= index.variables(load.index[0]))

    @property
    def stores(self) -> tuple[Store, ...]:
        """All that it writes."""
        return (*(store for one in self.passes for store in (*one.before, *one.stores)), *self.after)

    @property
    def checks(self) -> tuple[Check, ...]:
        return tuple(check for one in self.passes for check in one.checks)

    @property
    def has_scans(self) -> bool:
        return any(one.scans for one in self.passes)

    @property
    def steps(self) -> bool:
        """Whether it carries values along its row: that is gone through point by point, lanes are across."""
        return any(scan.start is not None for one in self.passes for scan in one.scans)

    @property
    def updates(self) -> bool:
        """Whether it stores at indirect indices: row loops then run in order, and lanes are never along them."""
        return any(index.indirect_atoms(store.index) for one in self.passes for store in one.stores)

    def reduced(self, name: str) -> Expr | None:
        """The operand of the reduction of that name along rows, if any."""
        return next((a.value for one in self.passes for a in one.reductions if a.name == name), None)

    def reads_again(self, e: Expr) -> bool:
        """Whether it reads a buffer that earlier points of a row may have written: no row loop hoists it."""
        return isinstance(e, Load) and self.updates and any(p.written and p.name == e.source for p in self.params)

    @property
    def writes_what_it_reads(self) -> bool:
        """Whether a buffer is both read and written: then at each point it is read first."""
        within = indirect_parts(*(store.index for store in self.stores))
        read = {load.source for load in loads(*(value for one in self.passes for value in one.values), *within)}
        return any(param.written and param.name in read for param in self.params)

    def on(self, names: Mapping[str, str]) -> Kernel:
        """The kernel on buffers of other names; two parameters that get one name become one."""
        params: dict[str, Param] = {}
        for param in self.params:
            name = names.get(param.name, param.name)
            known = params.get(name)
            params[name] = Param(name, param.dtype, param.written or (known is not None and known.written))
        passes = tuple(one.rewritten(lambda e: on_buffers(e, names), lambda s: s.on(names)) for one in self.passes)
        after = tuple(store.on(names) for store in self.after)
        return replace(self, params=tuple(params.values()), passes=passes, after=after)

    def called(self, name: str, names: Mapping[str, str]) -> Kernel:
        """The same under another name, its buffers and reductions under other ones, no two of which are the same."""
        names = {**names, **{Scratch.name_for(old): Scratch.name_for(new) for old, new in names.items()}}
        value = called(names)

        def store(s: Store) -> Store:
            return Store(names.get(s.buffer, s.buffer), s.index, value(s.value))

        def named(some: Iterable[Named]) -> tuple[Named, ...]:
            return tuple(replace(one, name=names.get(one.name, one.name)) for one in some)

        def renamed(one: RowPass) -> RowPass:
            one = one.rewritten(value, store)
            return replace(one, reductions=named(one.reductions), columns=named(one.columns), scans=named(one.scans))

        passes, after = tuple(map(renamed, self.passes)), tuple(map(store, self.after))
        params, scratch = named(self.params), named(self.scratch)
        return replace(self, name=name, params=params, passes=passes, scratch=scratch, after=after)

    def text(self) -> str:
        numbers = [f"{n.name}: {'f64' if isinstance(n, Number) else 'i64'}" for n in self.numbers]
        params = [f"{'out ' if p.written else ''}{p.name}: {p.dtype}" for p in self.params]
        lines = [f"kernel {self.name}({', '.join(params + numbers)})"]
        lines += [f"  scratch {s.name}: {s.dtype}[{s.numel}]" for s in self.scratch]
        depth = len(self.outer) + 1
        lines += self._loop_texts(self.outer, 1)
        for one in self.passes:
            lines += _indented(_statements(RowPass((), (), one.before)), depth)
            if one.has_loop:
                lines += [*self._loop_texts(self.row, depth), *_indented(_statements(one), depth + len(self.row))]
        if self.after:
            depth -= len(self.down)
            lines += self._loop_texts(self.row, depth)
            lines += _indented(_statements(RowPass((), (), self.after)), depth + len(self.row))
        return "\n".join(lines)

    def _loop_texts(self, loops: Sequence[Var], depth: int) -> Iterable[str]:
        for at, var in enumerate(loops):
            marks = " (lanes)" * (var is self.lane) + " (down)" * (var in self.down)
            yield from _indented([f"for {var.name} < {var.size}{marks}:"], depth + at)


def params_of(passes: Iterable[RowPass], after: Iterable[Store] = (), own: Collection[str] = ()) -> tuple[Param, ...]:
    """The buffers of passes and of stores after them, but for a kernel's `own`: each once.

    Those that are read come first, in order of first use, then those that are written.
    """
    read: dict[str, str] = {}
    written: dict[str, str] = {}
    for one in passes:
        written.update((store.buffer, store.value.dtype) for store in (*one.before, *one.stores))
        read.update((load.source, load.dtype) for load in loads(*one.values))
    written.update((store.buffer, store.value.dtype) for store in after)
    return (
        *(Param(name, dtype, False) for name, dtype in read.items() if name not in written and name not in own),
        *(Param(name, dtype, True) for name, dtype in written.items() if name not in own),
    )


def with_numbers(kernel: Kernel) -> Kernel:
    """The kernel with the symbols and numbers of its loops, indices and values."""
    sizes = symbols_of((*(v.size for v in (*kernel.outer, *kernel.row)), *(s.numel for s in kernel.scratch)))
    found, floats = symbols_and_numbers(*(value for one in kernel.passes for value in one.values))
    found = found.union(sizes, *(index.symbols(store.index) for store in kernel.stores))
    numbers: list[Symbol | Number] = sorted(found, key=lambda s: s.name)
    return replace(kernel, numbers=(*numbers, *sorted(floats, key=lambda n: n.name)))


def read_params(*roots: Expr) -> dict[str, Param]:
    """The buffers that are read under the roots, by their names."""
    return {load.source: Param(load.source, load.dtype, False) for load in loads(*roots)}


def _indented(lines: Iterable[str], depth: int) -> list[str]:
    return [f"{'  ' * depth}{line}" for line in lines]


def _statements(one: RowPass) -> list[str]:
    """Scans, reductions, those down columns, checks and stores, after names for shared expressions."""
    combined = [value for s in one.scans for value in (s.start, s.value) if value is not None]
    combined += [a.value for a in (*one.reductions, *one.columns)]
    lines, values = named_text(combined + [c.holds for c in one.checks] + [s.value for s in one.stores])
    texts = iter(values)
    for s in one.scans:
        origin = "" if s.start is None else f" from {next(texts)}:"
        lines.append(f"{s.name} = {'reverse ' if s.reverse else ''}{s.kind} scan{origin} {next(texts)}")
    lines += [f"{a.name} = {a.kind} {next(texts)}" for a in one.reductions]
    lines += [f"{a.name} = {a.kind} down {next(texts)}" for a in one.columns]
    lines += [f"check {next(texts)} else {c.failure.exception}" for c in one.checks]
    return lines + [f"{s.buffer}[{s.index}] = {next(texts)}" for s in one.stores]

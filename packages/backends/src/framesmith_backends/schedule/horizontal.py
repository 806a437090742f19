"""The horizontal fusion of a run: its independent kernels of the same structure become one launch.

A kernel may run before another if neither writes what the other reads or writes. Buffers and inputs that are written to
have memory of their own (`framesmith_aten.contract`), so names decide; results of calls may be views: `shown_by`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.kernel import Kernel, RowPass, Store, with_numbers
from framesmith_backends.ir.matmul import OnGpu
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import hint, numel, symbol
from framesmith_backends.schedule.kernels.loops import accesses, moved
from framesmith_backends.schedule.memory.reuse import gives_memory
from framesmith_backends.schedule.steps import CallStep, Step, names_of

#: Results within so many bytes stay in the cache for their readers, though others run in between.
NEAR_BYTES = 16 << 20
#: So many equal parts of a kernel become kernels of their own.
FEWEST_EQUAL = 3
#: Beyond so many elements offsets exceed 32 bits.
MOST_POINTS = 1 << 30
#: The loop over a line of elements of any number.
LINE = Var("x", symbol("elements", 1, MOST_POINTS))


@dataclass(frozen=True, slots=True)
class SharedForm:
    """The structure that the kernels of a launch share: `key`, and where they go along lines, the kernel over `LINE`.

    The key of such a kernel is what it does with the first element. A kernel of a single element is like any other that
    does the same with its first: it is over a line of one.
    """

    key: Hashable
    line: Kernel | None = None

    def shared_with(self, other: SharedForm) -> SharedForm | None:
        """Return the form that kernels of both, which have one key, share; None if they cannot be one launch."""
        if self.line is None or other.line is None or self.line == other.line:
            return self if other.line is None else other
        return None


def line_form(kernel: Kernel) -> SharedForm | None:
    """The form of a kernel that goes along its buffers, each element on its own, or has a single one; else None."""
    plain = not (kernel.row or kernel.scratch or kernel.checks or kernel.updates) and len(kernel.passes) == 1
    small = isinstance(kernel.points, int) and 0 < kernel.points <= MOST_POINTS
    if not (plain and small) or len(kernel.outer) > 1:
        return None
    named = kernel.on({param.name: f"b{k}" for k, param in enumerate(kernel.params)})
    assert isinstance(named, Kernel)
    named = replace(named, name="", outer=(), lane=None)
    if not kernel.outer:
        return SharedForm(named)
    (var,) = kernel.outer
    if not all(ix.terms in ((), ((var, 1),)) for ix, _ in accesses(kernel)):
        return None
    first, line = moved(named, {var: index.ZERO}), moved(named, {var: index.of(LINE)})
    return SharedForm(first, replace(line, outer=(LINE,), lane=LINE))


def split_independent_stores(kernel: Kernel) -> list[Kernel]:
    """Return the kernel split by independent stores, which share no buffer, where enough of the parts are equal.

    Fusion has gathered them for a number that they share, as the scale of gradients. As separate equal kernels they are
    one launch, in which each has its own programs and registers.
    """
    stores = [store for one in kernel.passes for store in one.stores]
    if len(kernel.outer) != 1 or kernel.row or len(stores) < FEWEST_EQUAL or any(one.before for one in kernel.passes):
        return [kernel]
    written = {param.name for param in kernel.params if param.written}
    parts: list[tuple[set[str], list[Store]]] = []
    for store in stores:
        read = loads(store.value)
        if any(load.source in written and not index.variables(load.index[0]) for load in read):
            return [kernel]
        lines = {store.buffer, *(load.source for load in read if index.variables(load.index[0]))}
        near = [part for part in parts if not lines.isdisjoint(part[0])]
        parts = [part for part in parts if lines.isdisjoint(part[0])]
        parts.append((lines.union(*(some for some, _ in near)), [*(s for _, ss in near for s in ss), store]))
    if len(parts) < FEWEST_EQUAL or line_form(kernel) is None:
        return [kernel]
    kernels = [_with_stores(kernel, stores, f"{kernel.name}_{k}") for k, (_, stores) in enumerate(parts)]
    structures = [line_form(part) for part in kernels]
    many = [form for form, count in Counter(structures).items() if count >= FEWEST_EQUAL]
    rest = [store for form, (_, stores) in zip(structures, parts, strict=True) if form not in many for store in stores]
    alone = [part for form, part in zip(structures, kernels, strict=True) if form in many]
    return [*alone, *([_with_stores(kernel, rest, kernel.name)] if rest else [])]


def _with_stores(kernel: Kernel, stores: Sequence[Store], name: str) -> Kernel:
    used = [*(load.source for load in loads(*(s.value for s in stores))), *(s.buffer for s in stores)]
    known = {param.name: param for param in kernel.params}
    params = tuple(sorted((known[name] for name in dict.fromkeys(used)), key=lambda param: param.written))
    return with_numbers(replace(kernel, name=name, params=params, passes=(RowPass((), (), tuple(stores)),)))


@dataclass(slots=True, eq=False)
class HorizontalGroup:
    """Kernels, by number, of one launch; launches run in the order of their positions.

    `written` and `moved` are how many bytes they write and, at most, how many they write and read. `followed` says that
    a later group has to come after this one, `read` that it reads what this one writes.
    """

    form: SharedForm
    position: int
    members: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    written: int = 0
    moved: int = 0
    followed: bool = False
    read: bool = False

    def position_for(self, kernel: OnGpu, form: SharedForm, after: int, last: int, most: int) -> int | None:
        """Return its position with a kernel that runs after `after`: its own, or behind the last; None if unfit."""
        if self.form.shared_with(form) is None or len(self.names | names_of(kernel)) > most:
            return None
        if self.position > after:
            return None if self.read and self.written + _bytes_written(kernel) > NEAR_BYTES else self.position
        return None if self.followed or self.moved + _bytes_moved(kernel) > NEAR_BYTES else last + 1

    def add(self, number: int, kernel: OnGpu, form: SharedForm) -> None:
        self.form = self.form.shared_with(form) or form
        self.members.append(number)
        self.names |= names_of(kernel)
        self.written += _bytes_written(kernel)
        self.moved += _bytes_moved(kernel)


def horizontal_groups(
    kernels: Sequence[OnGpu],
    structures: Sequence[SharedForm],
    most: int,
    shown: Mapping[str, frozenset[str]],
) -> list[HorizontalGroup]:
    """Return the kernels in groups of no more than `most` buffers, in an order in which these can run."""
    found: list[HorizontalGroup] = []
    by_key: dict[Hashable, list[HorizontalGroup]] = {}
    used: dict[str, dict[HorizontalGroup, None]] = {}
    written: dict[str, dict[HorizontalGroup, None]] = {}
    last = -1
    for number, (kernel, form) in enumerate(zip(kernels, structures, strict=True)):
        reads = _memory(names_of(kernel), shown)
        writes = _memory(names_of(kernel, written=True), shown)
        makers = [one for name in reads for one in written.get(name, ())]
        before = [*makers, *(one for name in writes for one in used.get(name, ()))]
        for one in makers:
            one.read = True
        for one in before:
            one.followed = True
        after = max((one.position for one in before), default=-1)
        same = by_key.setdefault(form.key, [])
        trials = ((one, one.position_for(kernel, form, after, last, most)) for one in same)
        own, place = next(((one, at) for one, at in trials if at is not None), (None, last + 1))
        if own is None:
            own = HorizontalGroup(form, place)
            found.append(own)
            same.append(own)
        own.position, last = place, max(last, place)
        own.add(number, kernel, form)
        for name in reads:
            used.setdefault(name, {})[own] = None
        for name in writes:
            written.setdefault(name, {})[own] = None
    return sorted(found, key=lambda one: one.position)


def shown_by(steps: Sequence[Step]) -> dict[str, frozenset[str]]:
    """For results of calls the names whose memory they may show; all others have their own."""
    found: dict[str, frozenset[str]] = {}
    for step in steps:
        if isinstance(step, CallStep):
            needs = () if gives_memory(step) else step.call.needs
            shown = (found.get(name, frozenset((name,))) for name in needs)
            found[step.call.name] = frozenset((step.call.name,)).union(*shown)
    return found


def _memory(names: set[str], shown: Mapping[str, frozenset[str]]) -> set[str]:
    return {root for name in names for root in shown.get(name, (name,))}


def _bytes_moved(kernel: OnGpu) -> int:
    if not isinstance(kernel, Kernel):
        return 0  # it shares no launch
    return hint(kernel.points) * sum(DTYPES[param.dtype].itemsize for param in kernel.params)


def _bytes_written(kernel: OnGpu) -> int:
    if not isinstance(kernel, Kernel):
        return 0
    rows, points = hint(numel(var.size for var in kernel.outer)), hint(kernel.points)
    stores = [(store, rows) for one in kernel.passes for store in one.before]
    stores += [(store, points) for one in kernel.passes for store in one.stores]
    return sum(DTYPES[store.value.dtype].itemsize * count for store, count in stores)

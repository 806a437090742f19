"""The loops of a kernel: splitting a variable used by division, ordering by stride, merging, choosing lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr, Index, Load, loads, transform, walk
from framesmith_backends.ir.kernel import Kernel, Store
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Atom, Div, Indirect, Ix, Mod, Var
from framesmith_backends.ir.symbolic.size import Size, exact_quotient, hint, is_multiple


def arrange(kernel: Kernel) -> Kernel:
    """All steps: the same computation over loops that suit the memory it touches."""
    kernel = split_divided(kernel)
    row = kernel.row if kernel.updates else ordered(kernel, kernel.row)
    kernel = replace(kernel, outer=ordered(kernel, kernel.outer), row=row)
    kernel = merge(kernel)
    return replace(kernel, lane=choose_lane(kernel))


def memory_indices(kernel: Kernel) -> Iterator[tuple[Ix, int]]:
    """Every index expression that addresses memory, and the bytes of an element there."""
    for store in kernel.after:
        yield store.index, DTYPES[store.value.dtype].itemsize
    for one in kernel.passes:
        for store in (*one.before, *one.stores):
            yield store.index, DTYPES[store.value.dtype].itemsize
        for load in loads(*one.values):
            yield load.index[0], DTYPES[load.dtype].itemsize


def accesses(kernel: Kernel) -> Iterator[tuple[Ix, bool]]:
    """Every index expression of the kernel, and whether it addresses memory."""
    yield from ((ix, True) for ix, _ in memory_indices(kernel))
    for node in walk(*(value for one in kernel.passes for value in one.values)):
        if isinstance(node, Index):
            yield node.ix, False


def read_once(kernel: Kernel) -> frozenset[Load]:
    """The reads that take each of their elements at one point alone, in one pass of a kernel of fixed sizes."""
    loops = {var for var in (*kernel.outer, *kernel.row) if var.size != 1}
    count = Counter(load for one in kernel.passes for load in loads(*one.values))
    return frozenset(load for load, passes in count.items() if passes == 1 and _is_injective(load.index[0], loops))


def _is_injective(ix: Ix, loops: Collection[Var]) -> bool:
    """Whether each point of the loops has an element of its own."""
    steps = [(k, atom.size) for atom, k in ix.terms if isinstance(atom, Var)]
    if len(steps) != len(ix.terms) or {atom for atom, _ in ix.terms} != loops:
        return False
    reach = 0
    for step, size in sorted((abs(hint(k)), hint(size)) for k, size in steps):
        if step <= reach:
            return False
        reach += step * (size - 1)
    return True


def rewrite_indices(kernel: Kernel, change: Callable[[Ix], Ix]) -> Kernel:
    """Apply `change` to every index expression."""

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            return Load(e.source, (change(e.index[0]),), e.dtype, e.guard)
        if isinstance(e, Index):
            return Index(change(e.ix))
        return None

    def store(s: Store) -> Store:
        return Store(s.buffer, s.changed_index(lambda e: transform(e, rule)), transform(s.value, rule))

    passes = tuple(one.rewritten(lambda value: transform(value, rule), store) for one in kernel.passes)
    return replace(kernel, passes=passes, after=tuple(map(store, kernel.after)))


def moved(kernel: Kernel, values: Mapping[Var, Ix]) -> Kernel:
    """The kernel with these values of its variables."""
    return rewrite_indices(kernel, lambda ix: index.substitute(ix, values))


def _divided(kernel: Kernel) -> tuple[Var, Size] | None:
    """Return a loop variable, not scanned, that occurs alone under a division or remainder by a divisor of its size."""
    for ix, _ in accesses(kernel):
        for atom in _atoms(ix):
            if isinstance(atom, (Var, Indirect)):
                continue
            base = atom.base
            if base.const != 0 or len(base.terms) != 1:
                continue
            var, k = base.terms[0]
            whole = kernel.has_scans and var in kernel.row
            if isinstance(var, Var) and k == 1 and is_multiple(var.size, atom.divisor) and not whole:
                return var, atom.divisor
    return None


def _atoms(ix: Ix) -> Iterator[Atom]:
    for atom, _ in ix.terms:
        yield atom
        if isinstance(atom, (Div, Mod)):
            yield from _atoms(atom.base)


def split_divided(kernel: Kernel) -> Kernel:
    """Make x // k and x % k loop variables of their own, so that the indices are affine."""
    for _ in range(16):
        found = _divided(kernel)
        if found is None:
            return kernel
        var, divisor = found
        size = exact_quotient(var.size, divisor)
        assert size is not None
        high, low, whole = index.halves_of(var, size, divisor)
        kernel = moved(kernel, {var: whole})
        outer, row, down = (
            tuple(w for v in loops for w in ((high, low) if v is var else (v,)) if w.size != 1)
            for loops in (kernel.outer, kernel.row, kernel.down)
        )
        kernel = replace(kernel, outer=outer, row=row, down=down)
    return kernel


def _step(ix: Ix, var: Var) -> int:
    """Return the stride along the variable, by the hints; 0 where it has none."""
    step = index.coefficient(ix, var)
    return 0 if step is None else abs(hint(step))


def ordered(kernel: Kernel, loops: tuple[Var, ...]) -> tuple[Var, ...]:
    """The loops with large strides outside: by the stores, and where those do not say, by the loads."""
    if len(loops) < 2:
        return loops
    stored = (s.index for one in kernel.passes for s in (*one.stores, *one.before))
    indices = (*stored, *(ix for ix, _ in memory_indices(kernel)))
    guide = next((ix for ix in indices if all(_step(ix, v) for v in loops)), None)
    return loops if guide is None else tuple(sorted(loops, key=lambda v: -_step(guide, v)))


def merge(kernel: Kernel) -> Kernel:
    """Merge neighbouring loops through which every access moves as through one."""
    for name in ("outer", "row"):
        while (k := _first_pair(kernel, getattr(kernel, name))) is not None:
            kernel = _merged(kernel, name, k)
    return kernel


def _first_pair(kernel: Kernel, loops: tuple[Var, ...]) -> int | None:
    """The position of the first loop that could be one with the next."""
    pairs = enumerate(pairwise(loops))
    return next((k for k, pair in pairs if all(_moves_as_one(ix, *pair) for ix, _ in accesses(kernel))), None)


def _moves_as_one(ix: Ix, a: Var, b: Var) -> bool:
    """Whether one variable could replace both; loads within indirect indices are accesses of their own."""
    ix = _as_known(ix)
    first, second = index.coefficient(ix, a), index.coefficient(ix, b)
    return first is not None and second is not None and first == second * b.size


def _as_known(ix: Ix) -> Ix:
    """Return the index with its data-dependent numbers replaced by 0."""
    return index.substitute(ix, dict.fromkeys(index.indirect_atoms(ix), index.ZERO))


def _merged(kernel: Kernel, name: str, k: int) -> Kernel:
    loops: tuple[Var, ...] = getattr(kernel, name)
    a, b = loops[k], loops[k + 1]
    joined = Var(f"{a.name}_{b.name}", a.size * b.size)

    def change(ix: Ix) -> Ix:
        step = index.coefficient(_as_known(ix), b)
        if step is None or step == 0:
            return ix
        return index.total(((index.substitute(ix, {a: index.ZERO, b: index.ZERO}), 1), (index.of(joined), step)))

    kernel = rewrite_indices(kernel, change)
    fresh = (*loops[:k], joined, *loops[k + 2 :])
    if name == "row":
        return replace(kernel, row=fresh)
    down = tuple(v for v in fresh if v in kernel.down or (v is joined and b in kernel.down))
    return replace(kernel, outer=fresh, down=down)


# Weight of an access by its stride along the lanes: next to each other, all the same, or scattered.
UNIT, SAME, SCATTERED, STORE_FACTOR = 2, 1, -4, 2


def choose_lane(kernel: Kernel) -> Var | None:
    """The variable along which most accesses are contiguous; an inner loop in case of doubt."""
    candidates = [v for v in (*reversed(kernel.row), *reversed(kernel.outer)) if hint(v.size) > 1]
    if kernel.steps:
        candidates = [v for v in candidates if v in kernel.outer]
    if kernel.updates:
        stored = [store.index for one in kernel.passes for store in one.stores]
        candidates = [v for v in kernel.outer if all(index.coefficient(_as_known(ix), v) == 1 for ix in stored)]
    if not candidates:
        return None
    return max(candidates, key=lambda v: (lane_score(kernel, v), hint(v.size) >= 8, -candidates.index(v)))


def lane_score(kernel: Kernel, var: Var) -> int:
    score = 0
    for ix, memory in accesses(kernel):
        if memory:
            step = index.coefficient(ix, var)
            score += UNIT if step == 1 else SAME if step == 0 else SCATTERED
    return score if hint(var.size) >= 4 else score - 100

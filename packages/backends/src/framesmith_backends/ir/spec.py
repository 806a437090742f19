"""The meaning of the IR, executable: an interpreter of expressions and kernels on torch tensors.

Slow and plain on purpose: every pass is evaluated at once over its whole domain. Symbolic sizes have their values
while tracing.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import (
    Carried,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Number,
    Recurrence,
    Ref,
    transform,
    walk,
)
from framesmith_backends.ir.kernel import Accumulate, Kernel, RowPass, Scan, Store
from framesmith_backends.ir.ops import OPS, REDUCTIONS, SCANS
from framesmith_backends.ir.program import Failure
from framesmith_backends.ir.symbolic.index import Div, Indirect, Ix, Var
from framesmith_backends.ir.symbolic.size import hint

Grid = Mapping[Var, torch.Tensor]
Memory = dict[str, torch.Tensor]


def grid_of(variables: Sequence[Var]) -> dict[Var, torch.Tensor]:
    """Each variable as an int64 tensor that broadcasts along its own dimension of the domain."""
    rank = len(variables)
    return {
        v: torch.arange(hint(v.size)).reshape([hint(v.size) if k == j else 1 for j in range(rank)])
        for k, v in enumerate(variables)
    }


def evaluate_index(ix: Ix, grid: Grid, known: Mapping[Expr, torch.Tensor]) -> torch.Tensor:
    """The index over the whole grid; `known` has the values of indirect parts."""
    result = torch.tensor(hint(ix.const))
    for atom, k in ix.terms:
        if isinstance(atom, Var):
            value = grid[atom]
        elif isinstance(atom, Indirect):
            given = known[atom.value]  # type: ignore[index]
            value = torch.where((given >= 0) & (given < hint(atom.size)), given, torch.zeros_like(given))
        else:
            base = evaluate_index(atom.base, grid, known)
            value = base // hint(atom.divisor) if isinstance(atom, Div) else base % hint(atom.divisor)
        result = result + hint(k) * value
    return result


def register_type(dtype: str) -> torch.dtype:
    """The type of a value in arithmetic: float32 for low-precision types, whose values it holds exactly."""
    return DTYPES[DTYPES[dtype].compute].torch


def evaluate(root: Expr, grid: Grid, memory: Memory, refs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The expression over the whole grid; `Load`s have one flat index, and `memory` flat tensors."""
    known: dict[Expr, torch.Tensor] = {}
    for node in walk(root):
        known[node] = _node(node, known, grid, memory, refs)
    return known[root]


def _node(
    node: Expr, known: dict[Expr, torch.Tensor], grid: Grid, memory: Memory, refs: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    if isinstance(node, Const):
        return torch.tensor(node.value, dtype=register_type(node.dtype))
    if isinstance(node, Index):
        return evaluate_index(node.ix, grid, known)
    if isinstance(node, Ref):
        return refs[node.name]
    if isinstance(node, Number):
        return memory[node.name]
    if isinstance(node, Cast):
        return known[node.value].to(DTYPES[node.dtype].torch).to(register_type(node.dtype))
    if isinstance(node, Load):
        guard = None if node.guard is None else known[node.guard]
        return _load(memory[node.source], evaluate_index(node.index[0], grid, known), guard, node.dtype)
    assert not isinstance(node, (Carried, Recurrence))  # of definitions, which are computed step by step
    value = OPS[node.name].meaning(*(known[a] for a in node.args))
    assert isinstance(value, torch.Tensor)
    return value


def _load(flat: torch.Tensor, where: torch.Tensor, guard: torch.Tensor | None, dtype: str) -> torch.Tensor:
    if guard is not None:
        where, guard = torch.broadcast_tensors(where, guard)  # type: ignore[no-untyped-call]
        where = torch.where(guard, where, torch.zeros_like(where))
    if where.numel() and (int(where.min()) < 0 or int(where.max()) >= flat.numel()):
        raise IndexError(f"a load at {int(where.min())}..{int(where.max())} of {flat.numel()} elements")
    value = flat[where].to(register_type(dtype))
    return value if guard is None else torch.where(guard, value, torch.zeros_like(value))


def in_order(together: Sequence[Var], loops: Sequence[Var]) -> Iterator[Grid]:
    """The points of some variables at once, one after another along others."""
    for point in itertools.product(*(range(hint(v.size)) for v in loops)):
        yield grid_of(together) | {v: torch.tensor(at) for v, at in zip(loops, point, strict=True)}


def scanned(kind: str, value: torch.Tensor, dim: int, reverse: bool) -> torch.Tensor:
    """At each place what is combined up to it, or from it on."""
    lines = value.unbind(dim)
    found = list(itertools.accumulate(lines[::-1] if reverse else lines, OPS[SCANS[kind].combine].meaning))
    return torch.stack(found[::-1] if reverse else found, dim)


def carried(
    scans: Sequence[Scan], var: Var | None, dim: int, grid: Grid, memory: Memory, refs: Mapping[str, torch.Tensor],
    full: Sequence[int],
) -> dict[str, torch.Tensor]:  # fmt: skip
    """The values that scans by steps carry to each point of a variable, along that dimension of the domain `full`."""
    shape = [size if k != dim else 1 for k, size in enumerate(full)]
    count = 1 if var is None else hint(var.size)
    state = {s.name: evaluate(s.start, grid, memory, refs).expand(shape) for s in scans if s.start is not None}
    found: dict[str, list[torch.Tensor]] = {name: [] for name in state}
    reverse = any(s.reverse for s in scans)
    for at in reversed(range(count)) if reverse else range(count):
        here = dict(grid) if var is None else {**grid, var: torch.full_like(grid[var], at).narrow(dim, 0, 1)}
        now = {name: _at(value, dim, at) for name, value in refs.items()}
        for name, value in state.items():
            found[name].append(value)
        state = {s.name: evaluate(s.value, here, memory, {**now, **state}).expand(shape) for s in scans}
    return {name: torch.cat(values[::-1] if reverse else values, dim) for name, values in found.items() if values}


def _at(value: torch.Tensor, dim: int, at: int) -> torch.Tensor:
    return value.narrow(dim, at, 1) if value.dim() > dim and value.shape[dim] > 1 else value


def raise_unless(holds: torch.Tensor, failure: Failure) -> None:
    if not bool(holds.all()):
        error: Exception = getattr(builtins, failure.exception)(failure.message)
        raise error


def run_kernel(kernel: Kernel, memory: Memory) -> None:
    """Run the kernel on flat buffers, in place. Scratch rows are kept for every outer point at once."""
    if kernel.updates:
        for here in in_order(kernel.outer, kernel.row):
            _run_updates(kernel, here, memory)
        return
    grid = grid_of((*kernel.outer, *kernel.row))
    outer_rank = len(kernel.outer)
    full = tuple(hint(v.size) for v in (*kernel.outer, *kernel.row))
    refs: dict[str, torch.Tensor] = {}
    scratch: dict[str, torch.Tensor] = {}
    names = {s.name for s in kernel.scratch}
    for one in kernel.passes:
        columns = {a.name: _combined_down(kernel, a, grid, memory, refs) for a in one.columns}
        run_pass(one, grid, memory, refs, scratch, names, full, outer_rank)
        refs.update(columns)
    behind = tuple(1 if v in kernel.down else hint(v.size) for v in (*kernel.outer, *kernel.row))
    for store in kernel.after:
        _write(store, evaluate(store.value, grid, memory, refs), grid, memory, behind)


def _combined_down(
    kernel: Kernel, a: Accumulate, grid: Grid, memory: Memory, refs: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """The accumulation over the loops that go down, for each point of the others."""
    loops = (*kernel.outer, *kernel.row)
    value = evaluate(a.value, grid, memory, refs).expand([hint(v.size) for v in loops])
    combined = REDUCTIONS[a.kind].meaning(value, tuple(k for k, v in enumerate(loops) if v in kernel.down))
    return combined.reshape([1 if v in kernel.down else hint(v.size) for v in loops])


def _run_updates(kernel: Kernel, grid: Grid, memory: Memory) -> None:
    [one] = kernel.passes
    for check in one.checks:
        raise_unless(evaluate(check.holds, grid, memory, {}), check.failure)
    for store in one.stores:
        value, where = (evaluate(e, grid, memory, {}) for e in (store.value, Index(store.index)))
        value, where = torch.broadcast_tensors(value, where)  # type: ignore[no-untyped-call]
        memory[store.buffer][where] = value.to(memory[store.buffer].dtype)


def run_pass(
    one: RowPass, grid: Grid, memory: Memory, refs: dict[str, torch.Tensor], scratch: dict[str, torch.Tensor],
    names: set[str], full: tuple[int, ...], outer_rank: int,
) -> None:  # fmt: skip
    def value_of(e: Expr) -> torch.Tensor:
        return evaluate(_scratch_refs(e, names), grid, memory, {**refs, **scratch})

    outer = (*full[:outer_rank], *([1] * (len(full) - outer_rank)))
    for store in one.before:
        _write(store, value_of(store.value), grid, memory, outer)
    row = tuple(range(outer_rank, len(full)))
    stepped = [s for s in one.scans if s.start is not None]
    if stepped:
        var = next((v for v, along in grid.items() if along.dim() > outer_rank and along.shape[outer_rank] > 1), None)
        refs.update(carried(stepped, var, outer_rank, grid, memory, {**refs, **scratch}, full))
    for s in (s for s in one.scans if s.start is None):
        refs[s.name] = scanned(s.kind, value_of(s.value).expand(full), outer_rank, s.reverse)
    fresh = {}
    for a in one.reductions:
        value = value_of(a.value).expand(full)
        combined = REDUCTIONS[a.kind].meaning(value, row) if row else value
        fresh[a.name] = combined.reshape(outer)
    for check in one.checks:
        raise_unless(value_of(check.holds), check.failure)
    for store, value in [(store, value_of(store.value)) for store in one.stores]:
        if store.buffer in names:
            scratch[store.buffer] = value.expand(full)
        else:
            _write(store, value, grid, memory, full)
    refs.update(fresh)


def _scratch_refs(e: Expr, names: set[str]) -> Expr:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in names:
            return Ref(node.source, node.dtype)
        return None

    return transform(e, rule) if names else e


def _write(store: Store, value: torch.Tensor, grid: Grid, memory: Memory, shape: tuple[int, ...]) -> None:
    where = evaluate_index(store.index, grid, {}).expand(shape)
    buffer = memory[store.buffer]
    buffer[where] = value.expand(shape).to(buffer.dtype)

"""The meaning of indices, programs and fused matmuls, executable: definitions are computed over their whole domain.

Tests compare it with what the passes and renderers make. Expressions and kernels are interpreted by `ir.spec`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr, Index, Load, Recurrence, Ref, transform
from framesmith_backends.ir.fused.matmul import ACCUMULATOR, FusedMatmul
from framesmith_backends.ir.kernel import Scan
from framesmith_backends.ir.ops import REDUCTIONS, STEPS
from framesmith_backends.ir.program import Def, Layout, Program, updated_place
from framesmith_backends.ir.recurrences import with_carried
from framesmith_backends.ir.spec import Memory, carried, evaluate, grid_of, in_order, raise_unless, run_pass, scanned
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Div, Indirect, Ix, Var
from framesmith_backends.ir.symbolic.size import Symbol, hint
from framesmith_backends.ir.symbolic.size import evaluate as size_value


def index_value(a: Ix, values: Mapping[Var, int], sizes: Mapping[Symbol, int] | None = None) -> int:
    """The expression's value for these values of its variables, and of the symbols its sizes are made of."""
    known = sizes or {}
    result = size_value(a.const, known)
    for atom, k in a.terms:
        if isinstance(atom, Var):
            value = values[atom]
        elif isinstance(atom, Indirect):
            raise ValueError(f"{atom} is data-dependent")
        elif isinstance(atom, Div):
            value = index_value(atom.base, values, sizes) // size_value(atom.divisor, known)
        else:
            value = index_value(atom.base, values, sizes) % size_value(atom.divisor, known)
        result += size_value(k, known) * value
    return result


def flat_memory(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The tensor's memory from its data pointer on, as far as the layout reaches."""
    reach = 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.strides, strict=True)) if layout.numel else 0
    return tensor.as_strided((hint(reach),), (1,))


def run_program(program: Program, memory: Memory) -> Memory:
    """Compute every definition from the flat buffers in `memory`; returns it with the definitions added."""
    for d in program.defs.values():
        memory[d.name] = _run_def(d, program, memory)
    return memory


def _stepped(d: Def, body: Recurrence, grid: Mapping[Var, torch.Tensor], memory: Memory) -> torch.Tensor:
    """The value that a recurrence carries to each point, or its step there."""
    assert d.scanned is not None
    steps = [with_carried(step, lambda one: Ref(f"carried.{one.number}", one.dtype)) for step in body.steps]
    scans = [
        Scan(f"carried.{k}", STEPS, step, d.reverse, start)
        for k, (start, step) in enumerate(zip(body.starts, steps, strict=True))
    ]
    full = [hint(v.size) for v in d.domain]
    before = carried(scans, d.scanned, d.domain.index(d.scanned), grid, memory, {}, full)
    return evaluate(steps[body.which], grid, memory, before) if body.after else before[f"carried.{body.which}"]


def _run_def(d: Def, program: Program, memory: Memory) -> torch.Tensor:
    if d.updates is not None:
        return _updated(d, program, memory)
    grid = grid_of(d.domain)
    body = _flat_loads(d.body, program)
    value = _stepped(d, body, grid, memory) if isinstance(body, Recurrence) else evaluate(body, grid, memory, {})
    value = value.expand([hint(v.size) for v in d.domain])
    if d.failure is not None:
        raise_unless(value, d.failure)
    if d.reduction is not None:
        dims = tuple(k for k, v in enumerate(d.domain) if v in d.reduced)
        value = REDUCTIONS[d.reduction].meaning(value, dims)
    if d.scan is not None and d.scanned is not None and not isinstance(body, Recurrence):
        value = scanned(d.scan, value, d.domain.index(d.scanned), d.reverse)
    kept = grid_of(d.kept)
    where = sum(
        (kept[a] * hint(s) for a, s in zip(d.axes, d.layout.strides, strict=True) if a is not None), torch.tensor(0)
    )
    reach = 1 + sum((n - 1) * s for n, s in zip(d.layout.shape, d.layout.strides, strict=True))
    out = torch.zeros(hint(reach), dtype=DTYPES[d.dtype].torch)
    out[where.expand(value.shape)] = value.to(out.dtype)
    return out


def _updated(d: Def, program: Program, memory: Memory) -> torch.Tensor:
    """The memory of what it updates, written point by point along the variables that are taken in order."""
    assert d.updates is not None
    steps = program.layouts[d.name].steps
    place = Index(index.total(zip(updated_place(d), steps, strict=True)))
    value, where = (_flat_loads(e, program) for e in (d.body, place))
    out = memory[d.updates].clone()
    for grid in in_order(d.kept, [v for v in d.domain if v in d.reduced]):
        memory[d.updates] = out
        found, at = (evaluate(e, grid, memory, {}) for e in (value, where))
        found, at = torch.broadcast_tensors(found, at)  # type: ignore[no-untyped-call]
        out[at] = found.to(out.dtype)
    return out


def _flat_loads(body: Expr, program: Program) -> Expr:
    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        flat = index.total(zip(e.index, program.layouts[e.source].strides, strict=True))
        return Load(e.source, (flat,), e.dtype, e.guard)

    return transform(body, rule)


def run_fused_matmul(matmul: FusedMatmul, memory: Memory) -> None:
    """Run the matmul and its epilogue on flat buffers, in place. Sums are of float32, those of all parts at once.

    Where a rest is cut evenly, the second kernel is all of it: nobody else reads the sums of the first.
    """
    if matmul.rest is not None and not matmul.rest.known:
        return
    columns = matmul.columns
    loops = (matmul.batch, matmul.rows, matmul.along), (matmul.batch, matmul.along, columns)
    (a, b) = (_operand(matmul, k, own, memory) for k, own in enumerate(loops))
    parts = 1 if matmul.part is None else hint(matmul.part.size)
    depth = matmul.tile.depth * -(-matmul.depth // (matmul.tile.depth * parts))
    sums = [a[..., k : k + depth] @ b[:, k : k + depth] for k in range(0, depth * parts, depth)]
    refs = {ACCUMULATOR: sums[0] if matmul.part is None else torch.stack(sums)}
    outer = matmul.epilogue.outer
    full = tuple(hint(v.size) for v in outer)
    run_pass(matmul.epilogue.passes[0], grid_of(outer), memory, refs, {}, set(), full, len(outer))


def _operand(matmul: FusedMatmul, which: int, loops: tuple[Var, Var, Var], memory: Memory) -> torch.Tensor:
    """The first or the second operand, as it lies in memory or as it is computed."""
    place, value = matmul.operands[which]
    if value is None:
        value = Load(
            place.source,
            (index.total(zip(map(index.of, loops), place.strides, strict=True), place.offset),),
            matmul.dtype,
        )
    found = evaluate(value, grid_of(loops), memory, {})
    return found.expand([hint(v.size) for v in loops]).float()

"""Operands of a GPU's matmuls that a pointwise kernel computes for one matmul alone: as expressions of its loops.

Such a kernel writes nothing but the operand, which is no result of the graph. A kernel that is the reader of another
matmul stays that: there each element is computed once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from framesmith_backends.ir.expr import substitute
from framesmith_backends.ir.fused.matmul import FusedMatmul
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.program import Program
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.schedule.fusion.group import Group, Node
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.kernels.index_splitting import split_ranges
from framesmith_backends.schedule.matmuls.attention_operands import readers_of
from framesmith_backends.schedule.matmuls.epilogues import Fusable, Prologue, why_not_epilogue, written_by_effects


@dataclass(frozen=True, slots=True)
class Known:
    """The facts that decide on every operand's prologue.

    `makers` has the group of each definition, `readers` is that of `readers_of`, `read` what others than nodes read,
    `written` what calls write to.
    """

    program: Program
    stored: frozenset[str]
    makers: Mapping[str, Group]
    readers: Mapping[str, list[int]]
    read: frozenset[str]
    written: frozenset[str]


def with_prologues(
    program: Program, nodes: Sequence[Node], found: Sequence[Fusable], stored: frozenset[str], read: Collection[str]
) -> list[Fusable]:
    """Return the matmuls, each with its possible prologues; `read` are buffers that others than nodes read."""
    after = {one.at for one in found if one.kernel is not None}
    groups = [node for node in nodes if isinstance(node, Group) and node.number not in after]
    makers = {d.name: node for node in groups for d in node.members}
    readers = readers_of(program, nodes)
    known = Known(program, stored, makers, readers, frozenset(read), frozenset(written_by_effects(program)))
    numbers = {node.call.name: node.number for node in nodes if not isinstance(node, Group)}
    complete: list[Fusable] = []
    for one in found:
        matmul, number = one.matmul, numbers[one.call.name]
        first = _prologue(known, matmul, "a", number)
        second = _prologue(known, matmul, "b", number)
        complete.append(replace(one, prologues=(first, second)))
    return complete


def _prologue(known: Known, matmul: FusedMatmul, which: str, number: int) -> Prologue | None:
    """Return the prologue of that operand of the matmul, whose node has this number, if any."""
    batch, rows, along, columns = matmul.batch, matmul.rows, matmul.along, matmul.columns
    place, loops = (matmul.a, (batch, rows, along)) if which == "a" else (matmul.b, (batch, along, columns))
    group, name = known.makers.get(place.source), place.source
    if group is None or {*known.readers.get(name, ())} != {number} or name in known.read:
        return None
    if any(param.name == name for param in matmul.epilogue.params):
        return None  # it is added to the matmul, too
    if group.reduced is not None or any(d.failure is not None or d.updates is not None for d in group.members):
        return None
    if [d.name for d in group.members if d.name in known.stored] != [name]:
        return None
    built = build_kernel(f"before_{matmul.name}_{which}", known.program, group, known.stored, scratch=False)
    kernels = split_ranges(built, separate=False)
    if len(kernels) != 1 or why_not_epilogue(kernels[0]) is not None:
        return None
    (kernel,) = kernels
    if not known.written.isdisjoint(param.name for param in kernel.params):
        return None
    where = _at(kernel, index.total(zip(map(index.of, loops), place.strides, strict=True), place.offset))
    if where is None:
        return None
    (store,) = kernel.passes[0].stores
    return Prologue(kernel, substitute(store.value, where), group.number)


def _at(kernel: Kernel, place: Ix) -> dict[Var, Ix] | None:
    """Return the kernel's loops at the point that stores the element of that offset; None if not known."""
    (store,) = kernel.passes[0].stores
    steps = [(index.coefficient(store.index, var), var) for var in kernel.outer if var.size != 1]
    if store.index.const != 0 or not all(isinstance(step, int) and isinstance(var.size, int) for step, var in steps):
        return None
    found = {var: index.ZERO for var in kernel.outer if var.size == 1}
    reach = 1
    for step, var in sorted(steps, key=lambda pair: pair[0]):  # type: ignore[arg-type, return-value]
        assert isinstance(step, int) and isinstance(var.size, int)
        if step < reach:
            return None
        found[var] = index.mod(index.floordiv(place, step), var.size)
        reach = step * var.size
    return found

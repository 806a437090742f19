"""Operands of a GPU's matmuls that a pointwise kernel computes for one matmul alone: as expressions of its loops.

Such a kernel writes nothing but the operand, which is no result of the graph. A kernel that is the reader of another
matmul stays that: there each element is computed once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from framesmith_backends.ir.expr import substitute
from framesmith_backends.ir.symbolic import index
from framesmith_backends.schedule.matmuls.epilogues import Fusable, Prologue
from framesmith_backends.schedule.matmuls.grouped import Grouped, point_at


def with_prologues(grouped: Grouped, found: Sequence[Fusable], read: Collection[str]) -> list[Fusable]:
    """Return the matmuls, each with its possible prologues; `read` are buffers that others than nodes read."""
    after = {one.at for one in found if one.kernel is not None}
    return [
        replace(one, prologues=(_prologue(grouped, one, "a", after, read), _prologue(grouped, one, "b", after, read)))
        for one in found
    ]


def _prologue(
    grouped: Grouped, one: Fusable, which: str, after: Collection[int], read: Collection[str]
) -> Prologue | None:
    """Return the prologue of that operand, if any: no group of those numbered `after`, the readers of matmuls."""
    matmul, batch = one.matmul, one.matmul.batch
    place, loops = (
        (matmul.a, (batch, matmul.rows, matmul.along))
        if which == "a"
        else (matmul.b, (batch, matmul.along, matmul.columns))
    )
    name = place.source
    group = grouped.makers.get(name)
    if group is None or group.number in after or name in read:
        return None
    if {*grouped.readers.get(name, ())} != {grouped.calls[one.call.name].number}:
        return None
    if any(param.name == name for param in matmul.epilogue.params):
        return None  # it is added to the matmul, too
    if [d.name for d in group.members if d.name in grouped.stored] != [name]:
        return None
    kernel = grouped.pointwise_kernel(f"before_{matmul.name}_{which}", group)
    if kernel is None or not grouped.written.isdisjoint(param.name for param in kernel.params):
        return None
    (store,) = kernel.passes[0].stores
    offset = index.total(zip(map(index.of, loops), place.strides, strict=True), place.offset)
    where = point_at(kernel.outer, store.index, offset)
    return None if where is None else Prologue(kernel, substitute(store.value, where), group.number)

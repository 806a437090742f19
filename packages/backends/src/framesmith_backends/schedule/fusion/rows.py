"""Row layouts: values that only kernels see become contiguous for reductions over their last dimensions.

In eager mode a value keeps the strides of what it is made of: behind a convolution over time and a permutation, all
of a transformer's residuals have strided features, and each of its norms reads columns. Where no call of
ATen's and no output shows such a value, it may have another layout: the kernel that makes it transposes it once.
"""

from __future__ import annotations

from dataclasses import replace

from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.program import Def, Program, contiguous_strides, is_dense
from framesmith_backends.ir.reduction_splits import reduces_rows


def use_row_layouts(program: Program) -> Program:
    wanted: set[str] = set()
    columns: set[str] = set()
    for d in program.defs.values():
        for load in loads(d.body) if d.reduced else ():
            made = program.defs.get(load.source)
            if made is not None:
                (wanted if reduces_rows(load.index, d.reduced, made.layout) else columns).add(made.name)
    changed = {
        name: replace(program.defs[name].layout, strides=contiguous_strides(program.defs[name].layout.shape))
        for name in wanted - columns
        if name not in program.kept and _may_lie_otherwise(program, program.defs[name])
    }
    if not changed:
        return program
    defs = {name: replace(d, layout=changed[name]) if name in changed else d for name, d in program.defs.items()}
    return replace(program, defs=defs, layouts=program.layouts | changed)


def _may_lie_otherwise(program: Program, d: Def) -> bool:
    plain = d.updates is None and d.buffer is None and d.failure is None and d.name not in program.alone
    return plain and is_dense(d.layout) and d.layout.strides != contiguous_strides(d.layout.shape)

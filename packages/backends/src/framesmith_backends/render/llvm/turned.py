"""Kernels that read across the rows of a tensor (`x.t() + y`): walked in tiles whose cache lines are used whole.

Read along the lanes, elements lie in as many cache lines, and the next point of another loop finds its own in the same
ones. So that loop becomes the innermost, over as many points as a few lines hold.
"""

from __future__ import annotations

from dataclasses import replace

from framesmith_backends.ir import index
from framesmith_backends.ir.index import Var
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.size import Size, hint
from framesmith_backends.render.llvm.emit import LONGEST_STEP
from framesmith_backends.schedule.loops import accesses, rewrite_indices

#: Points of the innermost loop: more than a cache line holds, and few enough that all their lines stay in the L1 cache.
FEWEST_POINTS, MOST_POINTS = 16, 64


def in_tiles(kernel: Kernel) -> Kernel:
    """The kernel with the loop innermost along which what the lanes scatter is contiguous; itself if there is none."""
    var = _along(kernel)
    if var is None:
        return kernel
    outer = tuple(v for v in kernel.outer if v is not var)
    points = _points(var.size)
    if points is None:
        return replace(kernel, outer=outer, row=(var,))
    tile, within = Var(f"{var.name}t", var.size // points), Var(f"{var.name}p", points)
    place = index.total(((index.of(tile), points), (index.of(within), 1)))
    kernel = rewrite_indices(kernel, lambda ix: index.substitute(ix, {var: place}))
    return replace(kernel, outer=(tile, *outer), row=(within,))


def _along(kernel: Kernel) -> Var | None:
    """The variable along which reads that are scattered along the lanes are contiguous, the same for all of them."""
    lane = kernel.lane
    if lane is None or kernel.row or lane not in kernel.outer or hint(lane.size) < FEWEST_POINTS:
        return None
    scattered = [ix for ix, memory in accesses(kernel) if memory and _is_far(index.coefficient(ix, lane))]
    found = [v for v in kernel.outer if v is not lane and all(index.coefficient(ix, v) == 1 for ix in scattered)]
    return found[0] if scattered and len(found) == 1 and hint(found[0].size) >= FEWEST_POINTS else None


def _is_far(step: Size | None) -> bool:
    return step is not None and abs(hint(step)) > LONGEST_STEP


def _points(size: Size) -> int | None:
    """How many points a tile has, a divisor of the size; None where the whole loop is one."""
    if not isinstance(size, int) or size <= 2 * MOST_POINTS:
        return None
    return next((points for points in range(MOST_POINTS, FEWEST_POINTS - 1, -1) if size % points == 0), None)

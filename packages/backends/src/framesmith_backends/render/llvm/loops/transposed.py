"""Kernels that read across the rows of a tensor (`x.t() + y`): walked in tiles whose cache lines are used whole.

Read along the lanes, elements lie in as many cache lines, and the next point of another loop finds its own in the same
ones. So that loop becomes the innermost, over as many points as a few lines hold.

Where a tile is whole, it is read along its rows and transposed in registers beforehand: rows whose addresses differ by
a power of two share few lines of the L1 cache, and are gone before the next point is read.
"""

from __future__ import annotations

from dataclasses import replace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Load, loads
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Size, hint
from framesmith_backends.render.llvm.builder import Builder, Value, constant, element_bytes
from framesmith_backends.render.llvm.loops.emit import LONGEST_STEP, scalar_index
from framesmith_backends.render.llvm.loops.memory import address
from framesmith_backends.render.llvm.loops.nest import opened_loop
from framesmith_backends.render.llvm.loops.state import Rendering
from framesmith_backends.schedule.kernels.loops import accesses, rewrite_indices

#: Points of the innermost loop: more than a cache line holds, and few enough that all their lines stay in the L1 cache.
FEWEST_POINTS, MOST_POINTS = 16, 64
#: Rows of the squares that are transposed in registers.
LARGEST_SQUARE = 16


def in_tiles(kernel: Kernel) -> Kernel:
    """The kernel with the loop innermost along which what the lanes scatter is contiguous; itself if there is none."""
    var = _along(kernel)
    if var is None or kernel.lane is None:
        return kernel
    outer, points = tuple(v for v in kernel.outer if v is not var), _points(var.size)
    if points is None:
        # The whole loop; threads share the lanes, of which there are to be enough.
        return kernel if hint(kernel.lane.size) < MOST_POINTS else replace(kernel, outer=outer, row=(var,))
    if points == var.size:
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
    """The points of a tile: all of a short loop, else a divisor of the size; None where there is none."""
    if not isinstance(size, int):
        return None
    if size <= 2 * MOST_POINTS:
        return size
    sizes = (*range(MOST_POINTS, FEWEST_POINTS - 1, -LARGEST_SQUARE), *range(MOST_POINTS, FEWEST_POINTS - 1, -1))
    return next((points for points in sizes if size % points == 0), None)


def transposed_tiles(r: Rendering) -> dict[Load, Value]:
    """Reads across rows whose tile, of this block of lanes, is written here: transposed, point by point."""
    kernel, lane = r.kernel, r.kernel.lane
    if lane not in kernel.outer or len(kernel.row) != 1 or any(one.reductions for one in kernel.passes):
        return {}
    (point,), written = kernel.row, {param.name for param in kernel.params if param.written}
    side = min(r.lanes, LARGEST_SQUARE)
    if not isinstance(point.size, int) or point.size > 2 * MOST_POINTS or point.size % side:
        return {}
    values = [store.value for one in kernel.passes for store in (*one.before, *one.stores)]
    return {
        load: _transposed(r, load, point, side)
        for load in loads(*values)
        if load.guard is None and load.source not in written and _crosses(load, lane, point)
    }


def _crosses(load: Load, lane: Var | None, point: Var) -> bool:
    (ix,) = load.index
    return lane is not None and _is_far(index.coefficient(ix, lane)) and index.coefficient(ix, point) == 1


def _transposed(r: Rendering, load: Load, point: Var, side: int) -> Value:
    """The tile of a read: the lanes of each point side by side. Squares of `side` rows are transposed in registers."""
    (ix,), kind, lane = load.index, DTYPES[load.dtype].memory, r.kernel.lane
    assert lane is not None and isinstance(point.size, int)
    place = r.room(f"[{point.size * r.lanes} x {kind}]")
    first = scalar_index(r, index.substitute(ix, {point: index.ZERO}))
    step = r.size_of(index.coefficient(ix, lane) or 0)
    vector, align = f"<{side} x {kind}>", element_bytes(kind)
    with opened_loop(r, constant(0, "i64"), constant(point.size, "i64"), side) as at:
        for group in range(0, r.lanes, side):
            rows = []
            for k in range(group, group + side):
                pointer = address(r, load.source, kind, r.b.add(r.b.add(first, r.b.mul(step, k)), at))
                rows.append(r.b.emit(f"load {vector}, ptr {pointer.text}, align {align}", kind, side))
            for k, column in enumerate(transposed(r.b, rows)):
                offset = r.b.add(r.b.mul(r.b.add(at, k), r.lanes), group)
                to = r.b.emit(f"getelementptr {kind}, ptr {place.text}, {offset.typed}", "ptr")
                r.b.line(f"store {column.typed}, ptr {to.text}, align {align}")
    return place


def transposed(b: Builder, rows: list[Value]) -> list[Value]:
    """A square of vectors, transposed: at each step the other quarters of squares half as large change sides."""
    side = len(rows)
    half = side // 2
    while half:
        following = list(rows)
        for k in range(side):
            if not k & half:
                low = [j if not j & half else side + j - half for j in range(side)]
                high = [j + half if not j & half else side + j for j in range(side)]
                following[k], following[k | half] = (b.shuffle(order, rows[k], rows[k | half]) for order in (low, high))
        rows, half = following, half // 2
    return rows

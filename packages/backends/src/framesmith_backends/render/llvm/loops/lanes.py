"""The number of values that a kernel computes side by side, and their order in registers."""

from __future__ import annotations

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Cast, Expr, Index, Load, Op, Ref, cost, indirect_parts, loads, walk
from framesmith_backends.ir.kernel import Kernel, RowPass
from framesmith_backends.ir.ops import OPS
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import Size, hint
from framesmith_backends.schedule.kernels.loops import accesses
from framesmith_backends.target import Processor

#: Roundings to bfloat16, one after another, in a chain of sums and matmuls of few tensors.
MANY_ROUNDINGS, CHEAP, FEW_LOADS = 6, 4, 2


# Note [Long chains]: most operations of an elementary function wait for the one before, and the processor looks only
# so far ahead: past some functions in a row it does not see the next vector's. So several are computed side by side. A
# chain of gelu, sin and sigmoid takes 0.65 to 0.75 of the time with four (Zen 4; 0.57 with vectors of 32 bytes). Values
# of 64 bits are two vectors already. A rounding to bfloat16 is four operations on integers that wait for each other:
# chains of these, which need few registers, take 0.78 of the time with eight vectors of 32 bytes.


def lanes_of(kernel: Kernel, target: Processor) -> int:
    """Lanes for this kernel: several vectors where the work per point is small or is a sum down columns."""
    if kernel.lane is None or kernel.lane.size == 1:
        return 1
    lanes = target.float_lanes
    roots = [value for one in kernel.passes for value in one.values]
    price = cost(*roots)
    reduces = any(p.reductions for p in kernel.passes)
    if price <= 12 and reduces:
        lanes *= 4
    elif price <= 24 or (reduces and _adds_up_doubles(kernel)):
        lanes *= 2
    elif not kernel.row and all(index.coefficient(ix, kernel.lane) in (0, 1) for ix, _ in accesses(kernel)):
        lanes *= _side_by_side(kernel, target, roots)
    if lanes == target.float_lanes and _all_deinterleaved(kernel, 2 * lanes, target):
        lanes *= 2
    size = kernel.lane.size
    if kernel.has_scans and isinstance(size, int) and lanes < size < 2 * lanes:
        lanes *= 2  # one block for each row
    while isinstance(size, int) and lanes > 2 and lanes // 2 >= size:
        lanes //= 2
    return lanes


#: Vectors of running values that leave registers for what is added to them.
MOST_SUMS = 8


def pass_lanes(kernel: Kernel, one: RowPass, lanes: int, target: Processor) -> int:
    """Lanes for one pass over rows along which the lanes lie: more than the kernel's `lanes` where it does little.

    A sum of one vector waits for itself; what a pass leaves for later ones is known without the lanes. No row gets a
    rest, computed under a mask, that has none otherwise.
    """
    lane = kernel.lane
    if lane is None or lane not in kernel.row or not isinstance(lane.size, int) or one.columns:
        return lanes
    price = cost(*(a.value for a in one.reductions), *(s.value for s in one.stores))
    few = 2 if price <= 24 or is_deinterleaved(kernel, (one,), 2 * target.float_lanes, target) else 1
    most = 4 if price <= 12 and one.reductions else few
    sums = sum(DTYPES[a.value.dtype].bits // 32 or 1 for a in one.reductions)
    for count in (4, 2):
        more = count * target.float_lanes
        rests = not lane.size % more or (lane.size % lanes and _wastes_little(lane.size, count, target))
        if lanes < more and count <= most and count * sums <= MOST_SUMS and rests:
            return more
    return lanes


# Note [Deinterleaved]: before AVX-512, 16 bfloat16 values are widened by two shuffles and two shifts, and narrowed by
# two shifts and two shuffles. Read as eight words of 32 bits, those of even offsets are words shifted left, those of
# odd ones are words without their lower halves; and two vectors of results are words again by a shift and a blend. So
# where all that differs along the lanes is bfloat16, a block's lanes are its elements of even offsets and then those of
# odd ones. AVX-512 saves as much. NEON is as short either way.


def is_deinterleaved(kernel: Kernel, passes: tuple[RowPass, ...], lanes: int, target: Processor) -> bool:
    """Whether these passes' lanes hold elements of even offsets before those of odd ones: see Note [Deinterleaved]."""
    lane = kernel.lane
    if lane is None or not target.vectors or lanes % (2 * target.float_lanes):
        return False
    if kernel.scratch and lane in kernel.outer:
        return False  # which holds all lanes of each of its elements
    nodes = list(walk(*(value for one in passes for value in one.values)))
    indices = [(store.value.dtype, store.index) for one in passes for store in (*one.before, *one.stores)]
    indices += [(node.dtype, node.index[0]) for node in nodes if isinstance(node, Load)]
    indices += [("i64", node.ix) for node in nodes if isinstance(node, Index)]
    steps = [(dtype, lane_step(kernel, ix)) for dtype, ix in indices]
    return all(step == 0 or (step == 1 and dtype == "bf16") for dtype, step in steps) and any(s == 1 for _, s in steps)


def lane_step(kernel: Kernel, ix: Ix) -> Size | None:
    """The index's step from lane to lane; None where that is not one number.

    Where lanes are outer, each has reductions of its own, and so do indices computed from these.
    """
    lane = kernel.lane
    if lane is None:
        return 0
    if lane in kernel.outer and any(isinstance(node, Ref) for node in walk(*indirect_parts(ix))):
        return None
    return index.coefficient(ix, lane)


def columns_deinterleaved(kernel: Kernel, lanes: int, target: Processor) -> bool:
    """Whether sums down columns are deinterleaved in their arrays, until they are stored: in whole blocks of lanes."""
    assert kernel.lane is not None and isinstance(kernel.lane.size, int)
    adding = (one for one in kernel.passes if one.columns)
    return not kernel.lane.size % lanes and all(is_deinterleaved(kernel, (one,), lanes, target) for one in adding)


def _all_deinterleaved(kernel: Kernel, lanes: int, target: Processor) -> bool:
    """Whether all passes of the kernel would be deinterleaved with so many lanes, none of which is wasted."""
    assert kernel.lane is not None
    return is_deinterleaved(kernel, kernel.passes, lanes, target) and _wastes_little(hint(kernel.lane.size), 2, target)


def _adds_up_doubles(kernel: Kernel) -> bool:
    """Whether all loops are short sums of doubles: of few vectors, each step waits for the one before."""
    sums = [a.value for one in kernel.passes for a in one.reductions]
    wide = all(DTYPES[value.dtype].bits == 64 for value in sums)
    return wide and not any(one.stores for one in kernel.passes) and cost(*sums) <= 12


def _rounds_often(roots: list[Expr]) -> bool:
    parts = list(walk(*roots))
    rounded = sum(isinstance(part, Cast) and part.dtype == "bf16" for part in parts)
    cheap = all(OPS[part.name].cost <= CHEAP for part in parts if isinstance(part, Op))
    return cheap and rounded >= MANY_ROUNDINGS and len(loads(*roots)) <= FEW_LOADS


def _side_by_side(kernel: Kernel, target: Processor, roots: list[Expr]) -> int:
    """The number of vectors computed at once where each takes long: see Note [Long chains]."""
    assert kernel.lane is not None
    most = 8 if target.vectors == "avx2" and _rounds_often(roots) else 4
    wide = any(DTYPES[part.dtype].bits == 64 for part in walk(*roots))
    size = hint(kernel.lane.size)
    return next((count for count in ((2,) if wide else (most, 4, 2)) if _wastes_little(size, count, target)), 1)


def _wastes_little(size: int, count: int, target: Processor) -> bool:
    """Whether no more than an eighth is lost with so many vectors at once: the last ones are computed under a mask."""
    lanes = target.float_lanes
    return -(-size // (count * lanes)) * count * 8 <= -(-size // lanes) * 9

"""The tiles of a matmul that are worth measuring: a short list by a model of the time that each takes.

Of the model only the order counts. A tile takes as long as its multiplications and what it computes of its operands, or
its reads of the cache, whichever is more, and tiles go in waves over the processors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Expr, cost, loads, variables
from framesmith_backends.ir.fused.matmul import FusedMatmul, TileShape
from framesmith_backends.render.triton.tile import WARP, covering, fixed
from framesmith_backends.target import most_shared

#: Rows, columns, bytes of depth, warps and stages of low-precision types; a depth in bytes serves float32 as well.
TILES = (
    (128, 256, 128, 8, 3), (256, 128, 128, 8, 3), (128, 128, 128, 8, 3), (128, 128, 128, 4, 3), (64, 256, 128, 8, 3),
    (128, 64, 128, 4, 4), (64, 128, 128, 4, 4), (64, 64, 128, 4, 4), (64, 64, 256, 4, 3), (64, 32, 256, 4, 4),
    (32, 128, 256, 4, 3), (32, 64, 256, 4, 4), (32, 32, 256, 4, 4), (16, 128, 256, 4, 3), (16, 64, 256, 4, 4),
    (16, 32, 512, 2, 3),
)  # fmt: skip
SPLITS = (1, 2, 4, 8)
#: So many of them are measured: with a program for each tile, with operands that are computed on the way in, in turn by
#: programs that stay, and cut evenly.
MOST_CANDIDATES, MOST_COMPUTED, MOST_IN_TURN, MOST_EVENLY = 6, 3, 2, 2
#: Tiles are not cut if processors are without work for less than this part of the time.
LEAST_IDLE = 0.05
#: Multiplications of a processor in a nanosecond with tall tiles, bytes that it reads from the cache, nanoseconds of a
#: launch or tile, and for how many elements it does a step of an expression in a nanosecond.
RATE, READ, START, STEPS = 6000.0, 50.0, 700.0, 200.0
#: Beside what it computes of operands a thread has no more sums than these, and of what costs so much it has no more
#: elements at once.
MOST_SUMS, DEAR, MOST_DEAR = 64, 16, 64
#: From this compute capability on tensor cores have memory for sums.
TENSOR_MEMORY = 100
#: There a tile in turn has no more columns, as its sums go through shared memory.
MOST_IN_TENSOR_MEMORY = 128
#: Bytes that a thread reads at once.
READ_AT_ONCE = 16
#: Of tiles with fewer rows than a step of the tensor cores, so many count as if they were there.
STEP = 64
#: Elements of the tiles that a processor has at once.
SHARED_TILES = 128 * 256


def candidates(matmul: FusedMatmul, capability: int, processors: int) -> list[TileShape]:
    """The tiles to be measured, those first that should be fastest; they compute what operands the matmul computes.

    Behind those in which each tile has a program those that programs take in turn, and those that are cut evenly.
    """
    shapes = [*_shapes(matmul)]
    plain = [replace(tile, splits=splits) for tile in shapes for splits in SPLITS]
    if any(matmul.tile.computed):
        return _best(matmul, plain, capability, processors)[:MOST_COMPUTED]
    at_once = [(tile, processors * _at_once(matmul, tile, capability)) for tile in shapes]
    in_turn = [replace(tile, programs=programs) for tile, programs in at_once]
    evenly = [replace(tile, evenly=programs) for tile, programs in at_once]
    lists = (plain, MOST_CANDIDATES), (in_turn, MOST_IN_TURN), (evenly, MOST_EVENLY)
    return [tile for tiles, most in lists for tile in _best(matmul, tiles, capability, processors)[:most]]


def _shapes(matmul: FusedMatmul) -> Iterator[TileShape]:
    itemsize = DTYPES[matmul.dtype].itemsize
    for rows, columns, width, warps, stages in TILES:
        depth = min(width // itemsize, max(16, covering(matmul.depth)))
        yield TileShape(rows, columns, depth, warps, stages, computed=matmul.tile.computed)


def _best(matmul: FusedMatmul, tiles: Iterable[TileShape], capability: int, processors: int) -> list[TileShape]:
    """Those in which the matmul is computed, the fastest first: of those that differ but in the parts of the depth one.

    Of tiles with few rows the model does not know the best.
    """
    good = [tile for tile in tiles if why_not(matmul, tile, capability) is None]
    chosen: dict[tuple[int, ...], TileShape] = {}
    for tile in sorted(good, key=lambda tile: modelled(matmul, tile, processors)):
        splits = 0 if tile.rows >= STEP else tile.splits
        chosen.setdefault((tile.rows, tile.columns, tile.depth, tile.warps, splits), tile)
    return [*chosen.values()]


def _at_once(matmul: FusedMatmul, tile: TileShape, capability: int) -> int:
    """The programs that a processor has at a time, of such as go over several tiles."""
    room = most_shared(capability) // shared_bytes(matmul, replace(tile, programs=1))
    return max(1, min(SHARED_TILES // (tile.rows * tile.columns), room))


def why_not(matmul: FusedMatmul, tile: TileShape, capability: int) -> str | None:
    """Why the matmul is not computed in such tiles, or None."""
    if shared_bytes(matmul, tile) > most_shared(capability):
        return "more shared memory than a launch has"
    if tile.rows > max(16, covering(matmul.rows.size)) or tile.columns > max(32, covering(matmul.columns.size)):
        return "larger than the matmul"
    if any(tile.computed) and not _fits_registers(matmul, tile, capability):
        return "more registers than there are"
    if tile.programs or tile.evenly:
        return _why_not_several(replace(matmul, tile=tile), capability)
    too_flat = tile.splits > 1 and matmul.depth < tile.splits * tile.depth * 4
    return "too little depth to be cut" if too_flat else None


def _why_not_several(matmul: FusedMatmul, capability: int) -> str | None:
    """Why programs do not go over several tiles of the matmul, or over parts of what is left over; or None."""
    tile = matmul.tile
    many = tile.rows * tile.columns > MOST_SUMS * WARP * tile.warps
    if not _lies_in_wide_rows(matmul):
        return "operands that are read in narrow chunks, each with an address in registers"
    if tile.evenly:
        if many:
            return "more registers than there are, where sums are added up"
        if tile.evenly > matmul.left_over * matmul.steps:
            return "nothing left over, or too little depth"
        idle = 1 - matmul.tiles / (-(-matmul.tiles // tile.evenly) * tile.evenly)
        return "hardly a processor without work" if idle < LEAST_IDLE else None
    if matmul.tiles <= tile.programs:
        return "a tile for each program"
    if capability >= TENSOR_MEMORY and (many or tile.columns > MOST_IN_TENSOR_MEMORY):
        return "more registers or shared memory than there are, by which sums go to other threads"
    return "more registers than there are" if many and not _is_lean(matmul) else None


def _is_lean(matmul: FusedMatmul) -> bool:
    """Whether a thread has room for twice the sums: of low-precision types, without masks, eight warps to a tile."""
    tile = matmul.tile
    whole = matmul.rows.size % tile.rows == 0 and matmul.columns.size % tile.columns == 0
    return whole and tile.warps == 8 and DTYPES[matmul.dtype].itemsize == 2


def _lies_in_wide_rows(matmul: FusedMatmul) -> bool:
    """Whether rows or columns of the operands that are read begin at multiples of 16 bytes, and lie side by side."""
    chunk = READ_AT_ONCE // DTYPES[matmul.dtype].itemsize
    for view in (view for view, value in matmul.operands if value is None):
        steps = [step for n, step in zip(view.shape, view.strides, strict=True) if n != 1]
        others = [view.offset, *(step for step in steps if step != 1)]
        if 1 not in steps or any(step % chunk != 0 for step in others):
            return False
    return True


def shared_bytes(matmul: FusedMatmul, tile: TileShape) -> int:
    """Bytes of what is read ahead, of an operand that is computed, which has no stages, and of results in turn."""
    lengths, itemsize = (tile.rows, tile.columns), DTYPES[matmul.dtype].itemsize
    read = sum(length * size for length, size in zip(lengths, bytes_read(matmul), strict=True)) * tile.stages
    made = sum(length * itemsize for length, own in zip(lengths, tile.computed, strict=True) if own)
    return tile.depth * (read + made) + (tile.rows * tile.columns * itemsize if tile.programs else 0)


def _fits_registers(matmul: FusedMatmul, tile: TileShape, capability: int) -> bool:
    """Whether what is computed has room beside the sums. From sm_100 on these are in memory of the tensor cores."""
    threads = WARP * tile.warps
    computed = sum(length for length, own in zip((tile.rows, tile.columns), tile.computed, strict=True) if own)
    dear = max(cost(value) for value in matmul.prologues if value is not None) >= DEAR
    if capability < TENSOR_MEMORY and tile.rows * tile.columns > MOST_SUMS * threads:
        return False
    return not dear or computed * tile.depth <= MOST_DEAR * threads


def bytes_read(matmul: FusedMatmul) -> tuple[int, int]:
    """Bytes that are read for an element of each operand: of those that are another for each of them."""
    loops = {matmul.along, matmul.rows}, {matmul.along, matmul.columns}

    def read(value: Expr | None) -> int:
        if value is None:
            return DTYPES[matmul.dtype].itemsize
        own = (one for one in loads(value) if any(both <= variables(one) for both in loops))
        return sum(DTYPES[one.dtype].itemsize for one in own)

    (_, first), (_, second) = matmul.operands
    return read(first), read(second)


def modelled(matmul: FusedMatmul, tile: TileShape, processors: int) -> float:
    """Nanoseconds, roughly."""
    rows, columns, batch = map(fixed, (matmul.rows.size, matmul.columns.size, matmul.batch.size))
    programs = -(-rows // tile.rows) * -(-columns // tile.columns) * batch * tile.splits
    depth = -(-matmul.depth // (tile.depth * tile.splits)) * tile.depth
    itemsize = DTYPES[matmul.dtype].itemsize
    rate = RATE * (2 / itemsize) * (1.0 if tile.rows * tile.columns >= 128 * 128 else 0.85)
    multiplied = 2 * max(tile.rows, STEP) * tile.columns * depth / rate
    lengths = (tile.rows, tile.columns)
    read = sum(length * size for length, size in zip(lengths, bytes_read(matmul), strict=True)) * depth / READ
    prologues = zip(lengths, matmul.prologues, strict=True)
    multiplied += sum(length * cost(value) for length, value in prologues if value is not None) * depth / STEPS
    together = max(1, min(programs // processors, SHARED_TILES // (tile.rows * tile.columns)))
    waves: float = -(-programs // (processors * together))
    parts = 0.0
    if tile.splits > 1:
        parts = START + 2 * tile.splits * rows * columns * batch * 4 / (processors * READ)
    elif tile.evenly:  # two tiles for each program, written and read
        together = tile.evenly // processors
        waves = programs / tile.evenly
        parts = START + together * 2 * 2 * tile.rows * tile.columns * 4 / READ
    return waves * (together * max(multiplied, read) + START) + parts

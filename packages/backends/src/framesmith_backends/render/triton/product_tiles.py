"""Which tiles of a product are worth measuring: a short list by a model of the time that each takes.

Of the model only the order counts. A tile takes as long as its multiplications or its reads of the cache, whichever is
more, and tiles go in waves over the processors.
"""

from __future__ import annotations

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.fused_product import FusedProduct, TileShape
from framesmith_backends.render.triton.devices import most_shared

#: Rows, columns, bytes of depth, warps and stages of half types; a depth in bytes serves float32 as well.
TILES = (
    (128, 256, 128, 8, 3), (256, 128, 128, 8, 3), (128, 128, 128, 8, 3), (128, 128, 128, 4, 3), (64, 256, 128, 8, 3),
    (128, 64, 128, 4, 4), (64, 128, 128, 4, 4), (64, 64, 128, 4, 4), (64, 64, 256, 4, 3), (64, 32, 256, 4, 4),
    (32, 128, 256, 4, 3), (32, 64, 256, 4, 4), (32, 32, 256, 4, 4), (16, 128, 256, 4, 3), (16, 64, 256, 4, 4),
    (16, 32, 512, 2, 3),
)  # fmt: skip
SPLITS = (1, 2, 4, 8)
#: So many of them are measured.
MOST_CANDIDATES = 6
#: What a processor multiplies in a nanosecond with tall tiles, reads from the cache, and what a launch or tile takes.
RATE, READ, START = 6000.0, 50.0, 700.0
#: Of tiles with fewer rows than a step of the tensor cores, so many count as if they were there.
STEP = 64


def candidates(product: FusedProduct, capability: int, processors: int) -> list[TileShape]:
    """The tiles to be measured, those first that should be fastest."""
    itemsize = DTYPES[product.dtype].itemsize
    found: list[tuple[float, TileShape]] = []
    for rows, columns, width, warps, stages in TILES:
        depth = min(width // itemsize, max(16, _covering(product.depth)))
        for splits in SPLITS:
            tile = TileShape(rows, columns, depth, warps, stages, splits)
            if why_not(product, tile, capability) is None:
                found.append((modelled(product, tile, processors), tile))
    found.sort(key=lambda pair: pair[0])
    chosen: list[TileShape] = []
    for _, tile in found:
        if len(chosen) < MOST_CANDIDATES and not any(_alike(tile, other) for other in chosen):
            chosen.append(tile)
    return chosen


def _alike(tile: TileShape, other: TileShape) -> bool:
    """Whether two differ but in the parts of the depth. Of tiles with few rows the model does not tell the best."""
    first, second = ((one.rows, one.columns, one.depth, one.warps) for one in (tile, other))
    return first == second and (tile.rows >= STEP or tile.splits == other.splits)


def why_not(product: FusedProduct, tile: TileShape, capability: int) -> str | None:
    """Why the product is not computed in such tiles, or None."""
    itemsize = DTYPES[product.dtype].itemsize
    if (tile.rows + tile.columns) * tile.depth * itemsize * tile.stages > most_shared(capability):
        return "more shared memory than a launch has"
    rows, columns = product.rows.size, product.columns.size
    assert isinstance(rows, int) and isinstance(columns, int)
    if tile.rows > max(16, _covering(rows)) or tile.columns > max(32, _covering(columns)):
        return "larger than the product"
    too_flat = tile.splits > 1 and product.depth < tile.splits * tile.depth * 4
    return "too little depth to be cut" if too_flat else None


def modelled(product: FusedProduct, tile: TileShape, processors: int) -> float:
    """Nanoseconds, roughly."""
    rows, columns, batch = product.rows.size, product.columns.size, product.batch.size
    assert isinstance(rows, int) and isinstance(columns, int) and isinstance(batch, int)
    programs = -(-rows // tile.rows) * -(-columns // tile.columns) * batch * tile.splits
    depth = -(-product.depth // (tile.depth * tile.splits)) * tile.depth
    itemsize = DTYPES[product.dtype].itemsize
    rate = RATE * (2 / itemsize) * (1.0 if tile.rows * tile.columns >= 128 * 128 else 0.85)
    multiplied = 2 * max(tile.rows, STEP) * tile.columns * depth / rate
    read = (tile.rows + tile.columns) * depth * itemsize / READ
    together = max(1, min(programs // processors, SHARED_TILES // (tile.rows * tile.columns)))
    waves = -(-programs // (processors * together))
    parts = START + 2 * tile.splits * rows * columns * batch * 4 / (processors * READ) if tile.splits > 1 else 0
    return waves * (together * max(multiplied, read) + START) + parts


#: Elements of the tiles that a processor has at once.
SHARED_TILES = 128 * 256


def _covering(size: int) -> int:
    return 1 << (size - 1).bit_length()

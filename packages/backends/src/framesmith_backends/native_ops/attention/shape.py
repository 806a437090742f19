"""The job of an attention call, and its tiling: tiles by the registers, blocks by the caches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from framesmith_backends.ir.symbolic.size import Size
from framesmith_backends.native_ops.job import Job
from framesmith_backends.target import Processor

#: Strides count elements; the elements of a head are contiguous. `times` heads of queries share a head of keys. A null
#: mask is none. A thread that finds no memory sets `failed`.
JOB = Job(
    *(f"ptr {name}" for name in ("query", "key", "value", "mask", "out", "lse")),
    *(f"i64 {name}" for name in (
        "heads", "times", "queries", "keys", "depth", "causal",
        "query_batch", "query_head", "query_row", "key_batch", "key_head", "key_row", "value_batch", "value_head",
        "value_row", "mask_batch", "mask_head", "mask_row", "mask_column", "out_batch", "out_head", "out_row",
        "lse_batch", "lse_head", "lse_row", "failed",
    )),
    "float scale",
)  # fmt: skip
POINTERS = 6
#: The largest head size: scratch of a thread has room for it.
MOST_DEPTH = 256
#: Keys of a block where lanes are queries, and where they are keys.
KEYS, KEYS_OF_ROW = 128, 512
#: The most queries that are taken one by one: Note [Few queries].
FEW = 4
#: Vectors of queries -> heights of register tiles, the tallest first, by bytes of a vector.
HEIGHTS: dict[int, dict[int, tuple[int, ...]]] = {
    64: {3: (8, 4, 1), 2: (12, 4, 1), 1: (16, 4, 1)},
    32: {3: (4, 1), 2: (6, 2, 1), 1: (8, 4, 1)},
    16: {3: (8, 4, 1), 2: (12, 4, 1), 1: (16, 4, 1)},
}  # fmt: skip
LOWEST = -math.inf


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that follow from the processor."""

    lanes: int
    heights: dict[int, tuple[int, ...]]

    @property
    def most(self) -> int:
        """Vectors of a block of queries, at most."""
        return max(self.heights)

    @property
    def offsets(self) -> dict[str, int]:
        """The offsets of arrays in a thread's scratch, in floats; the end is called `end`."""
        width, at = self.most * self.lanes, 0
        found: dict[str, int] = {}
        sizes = {
            "scores": (KEYS + 1) * width, "queries": (MOST_DEPTH + 1) * width, "sums": (MOST_DEPTH + 1) * width,
            "greatest": width, "total": width, "factor": width, "row": KEYS_OF_ROW + self.lanes,
            "rows": KEYS * MOST_DEPTH,
        }  # fmt: skip
        for name, size in sizes.items():
            found[name], at = at, at + -(-size // 16) * 16
        return {**found, "end": at}

    @property
    def bytes(self) -> int:
        """Bytes of a thread's scratch, whole pages."""
        return -(-self.offsets["end"] * 4 // 4096) * 4096


def shape_of(target: Processor) -> Shape:
    """The tiling for a processor."""
    return Shape(target.float_lanes, HEIGHTS[target.bytes])


def blocks_of(shape: Shape, queries: int) -> int:
    """Tasks of a head."""
    if queries <= FEW:
        return queries
    vectors = -(-queries // shape.lanes)
    return -(-vectors // shape.most)


def widths_of(shape: Shape, queries: int) -> tuple[int, ...]:
    """The widths of the blocks that so many queries are divided among, in vectors; none for few queries."""
    return () if queries <= FEW else block_widths(shape, queries)


def block_widths(shape: Shape, queries: Size) -> tuple[int, ...]:
    """The same of any number of queries; all widths of an unknown one."""
    if not isinstance(queries, int):
        return tuple(range(1, shape.most + 1))
    vectors = -(-queries // shape.lanes)
    each, more = divmod(vectors, -(-vectors // shape.most))
    return (each, each + 1) if more else (each,)

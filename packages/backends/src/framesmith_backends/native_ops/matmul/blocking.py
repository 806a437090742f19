"""The blocking of a matmul: register tiles by the processor's vectors, blocks by its caches."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from framesmith_backends.target import Processor

#: The sizes of caches that cannot be read.
FIRST_LEVEL, SECOND_LEVEL = 32 << 10, 512 << 10
#: The longest chain of additions, whatever the caches hold: the error grows with its root. Chains of 512 are 3% faster,
#: and their error is 1.6 times eager's.
LONGEST_CHAIN = 384


@dataclass(frozen=True, slots=True)
class Blocking:
    """`rows` are the heights of register tiles, the largest first; a tile is `vectors` vectors of `lanes` floats wide.

    Sums run over `depth` elements in registers; `depth` by `columns` elements of the second operand are packed at a
    time. Sums depend on `depth` and on the matmul's shape, not on threads.
    """

    lanes: int
    rows: tuple[int, ...]
    vectors: int
    depth: int
    columns: int

    @property
    def width(self) -> int:
        return self.lanes * self.vectors


def blocking(target: Processor, first: int | None = None, second: int | None = None) -> Blocking:
    """Tiles that fill the registers: 14x32 with AVX-512's 32, 6x16 with AVX2's 16, 8x8 with NEON's 32."""
    first = cache_size(1) or FIRST_LEVEL if first is None else first
    second = cache_size(2) or SECOND_LEVEL if second is None else second
    rows = {64: (14, 8, 4, 2, 1), 32: (6, 4, 2, 1), 16: (8, 4, 2, 1)}[target.bytes]
    # A panel of rows stays in the first cache while the packed block streams from the second.
    depth = min(LONGEST_CHAIN, max(128, first * 3 // 4 // 4 // rows[0] // 64 * 64))
    width = target.float_lanes * 2
    columns = min(1024, max(4 * width, second * 3 // 4 // 4 // depth // width * width))
    return Blocking(target.float_lanes, rows, 2, depth, columns)


@functools.cache
def cache_size(level: int) -> int | None:
    """Bytes of the data cache of that level, or None."""
    name = {1: "SC_LEVEL1_DCACHE_SIZE", 2: "SC_LEVEL2_CACHE_SIZE"}[level]
    if name in os.sysconf_names and (size := os.sysconf(name)) > 0:
        return size
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (folder / "level").read_text().strip() == str(level) and (folder / "type").read_text()[0] in "DU":
                text = (folder / "size").read_text().strip()
                return int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1], 0)
        except (OSError, ValueError, IndexError):
            continue
    return None

"""A product of matrices on a GPU as one kernel with what is computed of it: `Ref(ACCUMULATOR)` is its element.

Operands are places in buffers, of three dimensions: the number of the product, rows, columns. The epilogue is a kernel
whose loops are those of the result; it stores what is needed of each element, and reads what it needs besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from framesmith_backends.ir.expr import Number
from framesmith_backends.ir.index import Var
from framesmith_backends.ir.kernel import Kernel, Param
from framesmith_backends.ir.program import Place
from framesmith_backends.ir.size import Symbol

#: The name of the sum, in float32, in an epilogue.
ACCUMULATOR = "product"


@dataclass(frozen=True, slots=True)
class TileShape:
    """How a product is cut: rows, columns and depth of a program's tile, its warps, and how far loads run ahead.

    With `splits` above 1 the depth is cut in so many parts, whose sums another kernel adds up.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    splits: int = 1

    def text(self) -> str:
        parts = f" in {self.splits} parts" if self.splits > 1 else ""
        return f"{self.rows}x{self.columns}x{self.depth}{parts}, {self.warps} warps, {self.stages} stages"


@dataclass(frozen=True, slots=True)
class FusedProduct:
    """sum over k of a[z, m, k] * b[z, k, n], and the epilogue of it; z is `batch`, or `batch` within `part`.

    Only such tiles are asked of it as `part` allows: of a depth that is cut, `part` is the loop over the parts.
    """

    name: str
    a: Place
    b: Place
    dtype: str
    batch: Var
    rows: Var
    columns: Var
    depth: int
    epilogue: Kernel
    tile: TileShape
    part: Var | None = None

    @property
    def params(self) -> tuple[Param, ...]:
        found = {place.source: Param(place.source, self.dtype, False) for place in (self.a, self.b)}
        found |= {param.name: param for param in self.epilogue.params}
        return (*(p for p in found.values() if not p.written), *(p for p in found.values() if p.written))

    @property
    def numbers(self) -> tuple[Symbol | Number, ...]:
        return ()

    @property
    def points(self) -> int:
        """Multiplications."""
        _, m, k = self.a.shape
        count = self.a.shape[0] * m * k * self.b.shape[2]
        assert isinstance(count, int)
        return count

    def on(self, names: Mapping[str, str]) -> FusedProduct:
        """The product on buffers of other names."""
        return replace(self, a=self.a.on(names), b=self.b.on(names), epilogue=self.epilogue.on(names))

    def text(self) -> str:
        (z, m, k), n = self.a.shape, self.b.shape[2]
        head = f"product {self.name}: {z} x [{m}, {k}] {_text(self.a)} @ [{k}, {n}] {_text(self.b)}"
        return f"{head}, {self.dtype}, {self.tile.text()}\n{self.epilogue.text()}"


def _text(place: Place) -> str:
    start = f"+{place.offset}" if place.offset != 0 else ""
    return f"{place.source}{start} by {list(place.strides)}"

"""A GPU matmul with GEMM epilogue and prologues as one kernel: `Ref(ACCUMULATOR)` is its element.

Operands are views of buffers with three dimensions: the number of the matmul, rows, columns. Or a prologue computes
them: an expression over the loops of the operand. The epilogue is a kernel over the loops of the result; it reads its
other operands and stores what is needed of each element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from framesmith_backends.ir.expr import Expr, Number, on_buffers
from framesmith_backends.ir.kernel import Kernel, Param, read_params
from framesmith_backends.ir.program import BufferView
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Symbol, hint, numel

#: The name of the sum, in float32, in an epilogue.
ACCUMULATOR = "matmul"
#: The names of operands in text, by whether the first, the second, or both are meant.
OPERANDS = {(True, False): "a", (False, True): "b", (True, True): "a and b"}


@dataclass(frozen=True, slots=True)
class TileShape:
    """The tiling of a matmul: rows, columns and depth of a tile, warps, and stages of software pipelining.

    With `splits` above 1 the depth is split in so many parts (split-K), whose sums another kernel adds up. `computed`
    says of each operand whether a prologue computes it. With `programs` so many go over the tiles in turn (persistent
    kernel); otherwise each tile has a program. With `evenly` so many programs have as many tiles each, and left-over
    ones are split along the depth, in as many steps for each program: another kernel adds up their sums (stream-K).
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    splits: int = 1
    computed: tuple[bool, bool] = (False, False)
    programs: int = 0
    evenly: int = 0

    def text(self) -> str:
        parts = f" in {self.splits} parts" if self.splits > 1 else ""
        parts += f" in turn by {self.programs}" if self.programs else ""
        parts += f" evenly by {self.evenly}" if self.evenly else ""
        within = f", {OPERANDS[self.computed]} on the way in" if any(self.computed) else ""
        return f"{self.rows}x{self.columns}x{self.depth}{parts}, {self.warps} warps, {self.stages} stages{within}"


@dataclass(frozen=True, slots=True)
class Rest:
    """Sums of tiles that are split along the depth, in `buffer`: two tiles for each program, in float32.

    They are `known` to what adds them up, which has the epilogue, and computes all other tiles.
    """

    buffer: str
    known: bool


@dataclass(frozen=True, slots=True)
class FusedMatmul:
    """sum over k of a[z, m, k] * b[z, k, n], and the epilogue of it; z is `batch`, or `batch` within `part`.

    Only such tiles are asked of it as `part` allows: of a depth that is split, `part` is the loop over the parts. An
    operand that its tile has as computed is what `prologues` has for it, over (batch, rows, along) or (batch, along,
    columns), and not read at its place, which has the shape alone then. Of a tile with `evenly`, `rest` says which of
    both kernels it is.
    """

    name: str
    a: BufferView
    b: BufferView
    dtype: str
    batch: Var
    rows: Var
    columns: Var
    depth: int
    epilogue: Kernel
    tile: TileShape
    part: Var | None = None
    prologues: tuple[Expr | None, Expr | None] = (None, None)
    rest: Rest | None = None
    numbers: ClassVar[tuple[Symbol | Number, ...]] = ()

    @property
    def tiles(self) -> int:
        """The number of the result's tiles, of all matmuls; parts of the depth do not count."""
        sizes = (self.rows.size, self.tile.rows), (self.columns.size, self.tile.columns), (self.batch.size, 1)
        return math.prod(-(-hint(size) // length) for size, length in sizes)

    @property
    def steps(self) -> int:
        """The number of tiles along each part of the depth."""
        return -(-self.depth // (self.tile.depth * self.tile.splits))

    @property
    def left_over(self) -> int:
        """The number of tiles that are split evenly among programs: the last ones."""
        return self.tiles % self.tile.evenly if self.tile.evenly else 0

    @property
    def along(self) -> Var:
        """The loop over the depth, in prologues."""
        return Var("pk", self.depth)

    @property
    def operands(self) -> tuple[tuple[BufferView, Expr | None], tuple[BufferView, Expr | None]]:
        """Each operand's view, and its prologue, if any."""
        first, second = self.prologues
        return (self.a, first), (self.b, second)

    @property
    def params(self) -> tuple[Param, ...]:
        found: dict[str, Param] = {}
        for place, value in self.operands:
            found |= {place.source: Param(place.source, self.dtype, False)} if value is None else read_params(value)
        if self.rest is not None:
            found[self.rest.buffer] = Param(self.rest.buffer, "f32", not self.rest.known)
        if self.rest is None or self.rest.known:
            found |= {param.name: param for param in self.epilogue.params}
        return (*(p for p in found.values() if not p.written), *(p for p in found.values() if p.written))

    @property
    def points(self) -> int:
        """Multiplications."""
        return hint(numel((*self.a.shape, self.b.shape[2])))

    def on(self, names: Mapping[str, str]) -> FusedMatmul:
        """The matmul on buffers of other names."""
        first, second = (None if one is None else on_buffers(one, names) for one in self.prologues)
        a, b = self.a.on(names), self.b.on(names)
        rest = None if self.rest is None else replace(self.rest, buffer=names.get(self.rest.buffer, self.rest.buffer))
        return replace(self, a=a, b=b, epilogue=self.epilogue.on(names), prologues=(first, second), rest=rest)

    def text(self) -> str:
        (z, m, k), n = self.a.shape, self.b.shape[2]
        a, b = (place.text() if value is None else f"({value!r})" for place, value in self.operands)
        head = f"matmul {self.name}: {z} x [{m}, {k}] {a} @ [{k}, {n}] {b}"
        head = f"{head}, {self.dtype}, {self.tile.text()}"
        if self.rest is None:
            return f"{head}\n{self.epilogue.text()}"
        if not self.rest.known:
            return f"{head}\n  {self.rest.buffer} = sums of {self.left_over} of {self.tiles} tiles, in shares"
        return f"{head}, with sums in {self.rest.buffer}\n{self.epilogue.text()}"

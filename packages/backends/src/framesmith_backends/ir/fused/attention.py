"""Attention as one kernel: Q·K matmul, pointwise work on the scores, softmax, P·V matmul.

Operands are views of buffers with three dimensions: the number of the matmul; rows and elements of the queries,
elements and columns of the keys, columns and elements of the values. `Ref(ACCUMULATOR)` is a matmul in `scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from framesmith_backends.ir.expr import Const, Expr, Number, Op, Ref, on_buffers, symbols_and_numbers, walk
from framesmith_backends.ir.fused.matmul import ACCUMULATOR
from framesmith_backends.ir.kernel import Param, Store, read_params
from framesmith_backends.ir.program import BufferView, Failure
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Size, Symbol, hint, numel, symbols_of

#: Whether attention whose queries and keys are of a type is to be one kernel on a device.
Attends = Callable[[str, str], bool]

LOWEST = float("-inf")
#: The names of what is known of a row when all of its scores are.
LARGEST, TOTAL, FINITE_TOTAL, FULLY_MASKED = "largest", "total", "finite_total", "fully_masked"
#: More elements of a head do not fit into the registers of a GPU's program, of float32, or a thread's scratch.
MOST_DEPTH, MOST_FLOATS = 256, 128


def why_not_deep(depth: int, factors: str, on_gpu: bool = True) -> str | None:
    """Why heads of so many elements, of queries and keys of this type, do not fit into a program; None if they do."""
    most = MOST_FLOATS if on_gpu and factors == "f32" else MOST_DEPTH
    return f"heads of {depth} elements, where {most} fit" if depth > most else None


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Rows of a program, columns of a step, warps, and stages of software pipelining."""

    rows: int
    columns: int
    warps: int
    stages: int

    def text(self) -> str:
        return f"{self.rows}x{self.columns}, {self.warps} warps, {self.stages} stages"


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """result[z, m, e] = sum over n of p[z, m, n] * v[z, n, e]; probabilities p are softmax along n of the scores.

    `dtype` is that of values, probabilities and result, `factors` that of queries and keys. Where all scores of a row
    are -inf its result is 0 if `zero_masked_rows`, else NaN. What is `kept` of a row besides is made of `Ref`s to its
    LARGEST score, to the TOTAL of exponentials below that (the FINITE_TOTAL: below 0 where that is infinite), and to
    whether it is FULLY_MASKED.
    """

    name: str
    queries: BufferView
    keys: BufferView
    values: BufferView
    factors: str
    dtype: str
    batch: Var
    rows: Var
    columns: Var
    scores: Expr
    zero_masked_rows: bool
    result: str
    tile: AttentionTile
    kept: tuple[Store, ...] = ()
    #: The exceptions of a kernel of the CPU.
    failures: ClassVar[tuple[Failure, ...]] = (Failure("MemoryError", "attention found no memory to work in"),)

    @property
    def numbers(self) -> tuple[Symbol | Number, ...]:
        """The symbols and numbers that are known only at the call."""
        operands = self.queries, self.keys, self.values
        sizes = [size for one in operands for size in (one.offset, *one.shape, *one.strides)]
        found, numbers = symbols_and_numbers(self.scores, *(one.value for one in self.kept))
        symbols = found.union(symbols_of(sizes), *(index.symbols(one.index) for one in self.kept))
        return (*sorted(symbols, key=lambda symbol: symbol.name), *dict.fromkeys(numbers))

    @property
    def depths(self) -> tuple[Size, Size]:
        """The lengths of a head's queries and keys, and of its values."""
        return self.queries.shape[2], self.values.shape[2]

    @property
    def operands(self) -> tuple[tuple[BufferView, str], ...]:
        """The operands of the matmuls, with their dtypes."""
        return (self.queries, self.factors), (self.keys, self.factors), (self.values, self.dtype)

    @property
    def params(self) -> tuple[Param, ...]:
        found = {place.source: Param(place.source, dtype, False) for place, dtype in self.operands}
        found |= read_params(self.scores, *(one.value for one in self.kept))
        kept = (Param(one.buffer, "f32", True) for one in self.kept)
        return (*found.values(), Param(self.result, self.dtype, True), *kept)

    @property
    def points(self) -> int:
        """Multiplications."""
        return 2 * hint(numel((*self.queries.shape, self.columns.size)))

    def on(self, names: Mapping[str, str]) -> FusedAttention:
        """Attention on buffers of other names."""
        return replace(
            self,
            queries=self.queries.on(names),
            keys=self.keys.on(names),
            values=self.values.on(names),
            scores=on_buffers(self.scores, names),
            result=names.get(self.result, self.result),
            kept=tuple(store.on(names) for store in self.kept),
        )

    @property
    def seen(self) -> Expr | None:
        """The mask: whether a score is not -inf; None if that depends on more than positions."""
        x = self.scores
        if not (isinstance(x, Op) and x.name == "where" and x.args[2] == Const(LOWEST, x.dtype)):
            return None
        depends = any(isinstance(part, Ref) and part.name == ACCUMULATOR for part in walk(x.args[0]))
        return None if depends else x.args[0]

    def text(self) -> str:
        sizes = f"{self.batch.size} x [{self.rows.size}, {self.columns.size}]"
        operands = ", ".join(f"{one.source} by {list(one.strides)}" for one in (self.queries, self.keys, self.values))
        head = f"attention {self.name}: {sizes} of {operands}, {self.factors}, {self.dtype}, {self.tile.text()}"
        kept = "".join(f"\n  {one.buffer}[{one.index}] = {one.value!r}" for one in self.kept)
        return f"{head}\n  {self.result} of scores {self.scores!r}{kept}"

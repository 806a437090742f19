"""Gradients of attention on a GPU as kernels: matmuls, pointwise work on them, matmuls of that.

One kernel has gradients of queries, a row of scores after the other, another one those of keys and values, a column
after the other. A program has some of its `own` side, and goes over all of the `other` side in turn: it adds up
nothing that another program adds to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from framesmith_backends.ir.expr import Cast, Const, Expr, Number, Op, Ref, on_buffers, walk
from framesmith_backends.ir.fused.attention import LOWEST, AttentionTile
from framesmith_backends.ir.kernel import Param, read_params
from framesmith_backends.ir.program import BufferView
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.symbolic.size import Symbol, hint, numel, total


@dataclass(frozen=True, slots=True)
class SideMatmul:
    """`Ref(name)` is the sum over k of own[z, o, k] * other[z, k, t], in float32, of factors of type `dtype`."""

    name: str
    own: BufferView
    other: BufferView
    dtype: str


@dataclass(frozen=True, slots=True)
class SideSum:
    """result[z, o, e] = the sum over t of value[z, o, t] * factor[z, t, e].

    The factor is of type `stored`; values are rounded to the type `dtype`, in which both are multiplied.
    """

    value: Expr
    factor: BufferView
    stored: str
    dtype: str
    result: BufferView
    result_dtype: str


@dataclass(frozen=True, slots=True)
class FusedAttentionGradient:
    """Sums over the other side of pointwise work on matmuls of both; a tile's rows are of the own side.

    `last_first`: programs of the last rows are begun first.
    """

    name: str
    batch: Var
    own: Var
    other: Var
    matmuls: tuple[SideMatmul, ...]
    sums: tuple[SideSum, ...]
    tile: AttentionTile
    last_first: bool = False
    numbers: ClassVar[tuple[Symbol | Number, ...]] = ()

    @property
    def operands(self) -> tuple[tuple[BufferView, str], ...]:
        """The operands of the matmuls, with their dtypes."""
        factors = [(place, one.dtype) for one in self.matmuls for place in (one.own, one.other)]
        return (*factors, *((one.factor, one.stored) for one in self.sums))

    @property
    def params(self) -> tuple[Param, ...]:
        found = {place.source: Param(place.source, dtype, False) for place, dtype in self.operands}
        found |= read_params(*(one.value for one in self.sums))
        return (*found.values(), *(Param(one.result.source, one.result_dtype, True) for one in self.sums))

    @property
    def points(self) -> int:
        """Multiplications."""
        lengths = [*(one.own.shape[2] for one in self.matmuls), *(one.factor.shape[2] for one in self.sums)]
        return hint(total(lengths) * numel((self.batch.size, self.own.size, self.other.size)))

    def on(self, names: Mapping[str, str]) -> FusedAttentionGradient:
        """The same on buffers of other names."""
        matmuls = (replace(one, own=one.own.on(names), other=one.other.on(names)) for one in self.matmuls)
        sums = (
            replace(one, value=on_buffers(one.value, names), factor=one.factor.on(names), result=one.result.on(names))
            for one in self.sums
        )
        return replace(self, matmuls=tuple(matmuls), sums=tuple(sums))

    @property
    def seen(self) -> Expr | None:
        """The mask: false where all summands are 0; None if that depends on more than positions."""
        found = {_nothing_without(one.value) for one in self.sums}
        seen = found.pop() if len(found) == 1 else None
        return None if seen is None or any(isinstance(part, Ref) for part in walk(seen)) else seen

    def text(self) -> str:
        sizes = f"{self.batch.size} x [{self.own.size}, {self.other.size}]"
        lines = [f"attention gradient {self.name}: {sizes}, {self.tile.text()}"]
        lines += [f"  {one.name} = {one.own.text()} @ {one.other.text()}, {one.dtype}" for one in self.matmuls]
        lines += [
            f"  {one.result.text()} = {one.value!r} @ {one.factor.text()}, {one.dtype} of {one.stored}"
            for one in self.sums
        ]
        return "\n".join(lines)


def _nothing_without(e: Expr) -> Expr | None:
    """Return a condition without which the value is 0, if known: the probability of a masked score is 0."""
    if isinstance(e, Cast):
        return _nothing_without(e.value)
    if not isinstance(e, Op):
        return None
    if e.name == "where":
        return e.args[0] if e.args[2] == Const(0, e.dtype) else None
    if e.name == "mul":
        found = [_nothing_without(part) for part in e.args]
        return found[1] if found[0] is None else found[0]
    if e.name in ("div", "neg"):
        return _nothing_without(e.args[0])
    return _seen(e.args[0]) if e.name == "exp" else None


def _seen(e: Expr) -> Expr | None:
    """Return a condition without which the value is -inf; subtrahends are finite."""
    if isinstance(e, Op) and e.name == "sub":
        return _seen(e.args[0])
    hides = isinstance(e, Op) and e.name == "where" and e.args[2] == Const(LOWEST, e.dtype)
    return e.args[0] if isinstance(e, Op) and hides else None

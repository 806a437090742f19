"""A lowered tensor value: a buffer seen through an index map. Views are maps and cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framesmith_backends.ir.dtypes import compute_type, is_float, rounded_to
from framesmith_backends.ir.expr import Cast, Expr, Load, Number, cast, number
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, Sym, Undecided

Shape = tuple[Size, ...]


def axis(k: int, size: Size) -> Var:
    """The canonical variable of dimension `k` of a tensor of that size there."""
    return Var(f"d{k}", size)


def axes_of(shape: Shape) -> tuple[Var | None, ...]:
    """The canonical variable of each dimension; None where the size is 1."""
    return tuple(axis(k, size) if size != 1 else None for k, size in enumerate(shape))


def point(shape: Shape) -> tuple[Ix, ...]:
    """One index expression for each dimension: its canonical variable (0 where the size is 1)."""
    return tuple(index.of(axis(k, size)) for k, size in enumerate(shape))


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`index[k]` is the position in dimension k of `source`, in terms of this tensor's canonical variables."""

    source: str
    shape: Shape
    dtype: str
    index: tuple[Ix, ...]

    def at(self, where: Sequence[Ix]) -> Expr:
        """The element at `where` (one expression for each dimension)."""
        return Load(self.source, self.viewed((), where).index, self.dtype)

    def viewed(self, shape: Shape, where: Sequence[Ix]) -> Tensor:
        """The view of `shape` whose element d is this tensor's element `where` (in d's canonical variables)."""
        values = {axis(k, size): ix for k, (size, ix) in enumerate(zip(self.shape, where, strict=True)) if size != 1}
        return Tensor(self.source, shape, self.dtype, tuple(index.substitute(i, values) for i in self.index))


def whole(source: str, shape: Shape, dtype: str) -> Tensor:
    return Tensor(source, shape, dtype, point(shape))


def broadcast(tensor: Tensor, shape: Shape) -> Tensor:
    """The tensor expanded to `shape` by the usual rules (dimensions aligned at the right)."""
    if tensor.shape == shape:
        return tensor
    first = len(shape) - len(tensor.shape)
    for size, wanted in zip(tensor.shape, shape[first:], strict=True):
        if size != wanted and size != 1:
            raise Undecided(f"whether {size} is {wanted}")
    here = point(shape)[first:]
    where = tuple(i if size != 1 else index.ZERO for i, size in zip(here, tensor.shape, strict=True))
    return tensor.viewed(shape, where)


Operand = Tensor | bool | int | float | Sym | Number
Formula = Callable[..., Expr]


def element(operand: Operand, where: Sequence[Ix], shape: Shape, dtype: str, meets: str | None = None) -> Expr:
    """The operand's value at `where` of the broadcast shape, cast to `dtype`; rounded to `meets` before, if given."""
    if isinstance(operand, Tensor):
        return met(broadcast(operand, shape).at(where), dtype, meets)
    return rounded(operand, dtype, meets)


def met(value: Expr, dtype: str, meets: str | None = None) -> Expr:
    """The value cast to `dtype`; rounded to the type `meets` before, if given."""
    if meets is not None and compute_type(meets) == dtype and meets not in (dtype, value.dtype):
        value = Cast(Cast(value, dtype), meets)
    return cast(value, dtype)


def rounded(value: bool | int | float | Sym | Number, dtype: str, meets: str | None = None) -> Expr:
    """A number in type `dtype`; rounded to the type `meets` before, if given."""
    if isinstance(value, (int, float)):
        return number(value if meets is None or not is_float(meets) else rounded_to(value, meets), dtype)
    if meets is not None and compute_type(meets) == dtype != meets:
        return Cast(Cast(number(value, dtype), meets), dtype)
    return number(value, dtype)

"""Lowering of padding: of what lies outside, by one value, by the nearest element, or by what lies as far inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framesmith_backends.ir.dtypes import compute_type
from framesmith_backends.ir.expr import Expr, Index, Op, cast, guarded, indirect
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import Size
from framesmith_backends.lower.movement.copies import Value, at_least, below, choose, conjunction, inside
from framesmith_backends.lower.movement.views import moved
from framesmith_backends.lower.registry import add_row, rule
from framesmith_backends.lower.scope import Decline, Scope
from framesmith_backends.lower.tensor import Tensor, point

#: Of a place outside a dimension of that size: where the element is that stands there, (before it, behind it).
Outside = Callable[[Ix, Size], tuple[Ix, Ix]]


@rule("constant_pad_nd")
def constant_pad_nd(s: Scope, x: Tensor, pad: Sequence[Size], value: Value = 0) -> Tensor:
    where = list(point(s.result.shape))
    conditions: list[Expr | None] = []
    for k in range(len(pad) // 2):
        dim = len(x.shape) - 1 - k
        where = moved(where, dim, -pad[2 * k])
        conditions.append(inside(where[dim], x.shape[dim]))
    return choose(s, conjunction(conditions), x.at(where), value)


def _padded(s: Scope, x: Tensor, padding: Sequence[Size], outside: Outside) -> Tensor:
    """Along a row of the result its three parts are read as such; along other dimensions the index is computed."""
    where = list(point(s.result.shape))
    row: int | None = None
    for k in range(len(padding) // 2):
        dim = len(x.shape) - 1 - k
        where, size = moved(where, dim, -padding[2 * k]), x.shape[dim]
        place = where[dim]
        if inside(place, size) is None:
            continue
        if s.result.strides[dim] == 1 and row is None:
            row = dim
            continue
        before, behind = outside(place, size)
        inner = Op("where", at_least(place, size), Index(behind), Index(place))
        where[dim] = indirect(Op("where", below(place, 0), Index(before), inner), size)
    if row is None:
        return s.made(x.at(where))
    place, size = where[row], x.shape[row]
    before, behind = outside(place, size)
    if before.terms and not _is_long(size, s.result.shape[row]):
        raise Decline("much of a row read from its end: vectors reversed at every step take longer than ATen")
    is_before, is_behind, is_inside = below(place, 0), at_least(place, size), inside(place, size)
    assert is_inside is not None

    def element(at: Ix, condition: Expr | None = None) -> Expr:
        found = x.at((*where[:row], at, *where[row + 1 :]))
        return found if condition is None else guarded(found, condition)

    first_part = element(before, is_before if before.terms else None)
    last_part = element(behind, is_behind if behind.terms else None)
    parts = (first_part, last_part, element(place, is_inside))
    first, last, rest = (cast(part, compute_type(x.dtype)) for part in parts)
    body = Op("where", is_before, first, Op("where", is_behind, last, rest))
    return s.made(body)


def _is_long(size: Size, padded: Size) -> bool:
    """Whether most of a padded row is the row itself, which kernels then compute as a loop of its own."""
    return isinstance(size, int) and isinstance(padded, int) and padded <= size + size // 4


def _reflected(place: Ix, size: Size) -> tuple[Ix, Ix]:
    return index.scale(place, -1), index.total(((place, -1),), 2 * size - 2)


def _nearest(place: Ix, size: Size) -> tuple[Ix, Ix]:
    return index.ZERO, index.const(size - 1)


add_row(lambda s, x, padding: _padded(s, x, padding, _reflected), "reflection_pad2d", "reflection_pad3d")
add_row(
    lambda s, x, padding: _padded(s, x, padding, _nearest),
    "replication_pad1d", "replication_pad2d", "replication_pad3d",
)  # fmt: skip

"""Lowering of views: each is an index map over its argument, so that it costs nothing inside a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import Size, extreme, numel
from framesmith_backends.lower.registry import view
from framesmith_backends.lower.scope import Scope
from framesmith_backends.lower.tensor import Shape, Tensor, broadcast, point


@view("view", "squeeze", "squeeze.dim", "squeeze.dims")
def reshape(s: Scope, x: Tensor, *_: object) -> Tensor:
    # Only dimensions of size 1 are squeezed, so that the others keep their order.
    return reshaped(x, s.result.shape)


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    if numel(shape) == 0:
        return x.viewed(shape, [index.ZERO] * len(x.shape))
    return x.viewed(shape, index.delinearize(index.linearize(point(shape), shape), x.shape))


@view("permute")
def permute(s: Scope, x: Tensor, dims: Sequence[int]) -> Tensor:
    at = {dim % len(dims): ix for dim, ix in zip(dims, point(s.result.shape), strict=True)}
    return x.viewed(s.result.shape, [at[dim] for dim in range(len(dims))])


def unsqueezed(x: Tensor, shape: Shape, dim: int) -> Tensor:
    where = list(point(shape))
    del where[dim % len(where)]
    return x.viewed(shape, where)


view("expand")(lambda s, x, size, *, implicit=False: broadcast(x, s.result.shape))
view("unsqueeze")(lambda s, x, dim: unsqueezed(x, s.result.shape, dim))


def _selected(x: Tensor, shape: Shape, dim: int, at: Size) -> Tensor:
    """The part of that shape at a place of a dimension."""
    where = list(point(shape))
    where.insert(dim, index.const(at))
    return x.viewed(shape, where)


@view("select.int")
def select(s: Scope, x: Tensor, dim: int, at: Size) -> Tensor:
    dim %= len(x.shape)
    return _selected(x, s.result.shape, dim, normal_place(at, x.shape[dim]))


@view("unbind.int")
def unbind(s: Scope, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(_selected(x, layout.shape, dim % len(x.shape), k) for k, layout in enumerate(s.results))


def normal_place(at: Size, size: Size) -> Size:
    """A place from the start of a dimension, given one that counts from its end if it is negative."""
    return at + size if at < 0 else at


def normal_start(start: Size | None, size: Size) -> Size:
    start = normal_place(0 if start is None else start, size)
    return extreme(extreme(start, 0, True), size, False)


def moved(where: Sequence[Ix], dim: int, by: Size) -> list[Ix]:
    """The position that is so far behind along a dimension."""
    return [index.add(ix, index.const(by)) if k == dim else ix for k, ix in enumerate(where)]


@view("slice.Tensor")
def slice_(
    s: Scope, x: Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> Tensor:
    dim %= len(x.shape)
    where = list(point(s.result.shape))
    where[dim] = index.scale(where[dim], step)
    return x.viewed(s.result.shape, moved(where, dim, normal_start(start, x.shape[dim])))


@view("split.Tensor", "split_with_sizes")
def split(s: Scope, x: Tensor, sizes: object, dim: int = 0) -> tuple[Tensor, ...]:
    dim %= len(x.shape)
    found: list[Tensor] = []
    first: Size = 0
    for layout in s.results:
        found.append(x.viewed(layout.shape, moved(point(layout.shape), dim, first)))
        first += layout.shape[dim]
    return tuple(found)


@view("diagonal")
def diagonal(s: Scope, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rank = len(x.shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    *where, along = point(s.result.shape)
    for dim in sorted((dim1, dim2)):
        shift = max(-offset, 0) if dim == dim1 else max(offset, 0)
        where.insert(dim, index.add(along, index.const(shift)))
    return x.viewed(s.result.shape, where)

"""Lowering of views: each is an index map over its argument, so that it costs nothing inside a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import Size, extreme, numel
from framesmith_backends.lower.registry import view
from framesmith_backends.lower.scope import Scope
from framesmith_backends.lower.tensor import Shape, Tensor, broadcast, point


@view("view")
def reshape(s: Scope, x: Tensor, *_: object) -> Tensor:
    return reshaped(x, s.result.shape)


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    if numel(shape) == 0:
        return x.viewed(shape, tuple(index.ZERO for _ in x.shape))
    return x.viewed(shape, index.delinearize(index.linearize(point(shape), shape), x.shape))


@view("permute")
def permute(s: Scope, x: Tensor, dims: Sequence[int]) -> Tensor:
    here = point(s.result.shape)
    where: list[Ix] = [index.ZERO] * len(dims)
    for k, dim in enumerate(dims):
        where[dim % len(dims)] = here[k]
    return x.viewed(s.result.shape, tuple(where))


@view("expand")
def expand(s: Scope, x: Tensor, size: Sequence[int], *, implicit: bool = False) -> Tensor:
    return broadcast(x, s.result.shape)


@view("unsqueeze")
def unsqueeze(s: Scope, x: Tensor, dim: int) -> Tensor:
    here = list(point(s.result.shape))
    del here[dim % len(here)]
    return x.viewed(s.result.shape, tuple(here))


@view("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(s: Scope, x: Tensor, dims: object = None) -> Tensor:
    # Only dimensions of size 1 go, so the others keep their order whatever was asked for.
    return reshaped(x, s.result.shape)


@view("select.int")
def select(s: Scope, x: Tensor, dim: int, at: Size) -> Tensor:
    dim %= len(x.shape)
    where = list(point(s.result.shape))
    where.insert(dim, index.const(normal_place(at, x.shape[dim])))
    return x.viewed(s.result.shape, tuple(where))


def normal_place(at: Size, size: Size) -> Size:
    """A place from the start of a dimension, given one that counts from its end if it is negative."""
    return at + size if at < 0 else at


def normal_start(start: Size | None, size: Size) -> Size:
    start = normal_place(0 if start is None else start, size)
    return extreme(extreme(start, 0, True), size, False)


@view("slice.Tensor")
def slice_(
    s: Scope, x: Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> Tensor:
    dim %= len(x.shape)
    where = list(point(s.result.shape))
    first = normal_start(start, x.shape[dim])
    where[dim] = index.add(index.scale(where[dim], step), index.const(first))
    return x.viewed(s.result.shape, tuple(where))


def _parts(x: Tensor, dim: int, shapes: Sequence[Shape]) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    first: Size = 0
    for shape in shapes:
        where = list(point(shape))
        where[dim] = index.add(where[dim], index.const(first))
        found.append(x.viewed(shape, tuple(where)))
        first += shape[dim]
    return tuple(found)


@view("split.Tensor", "split_with_sizes")
def split(s: Scope, x: Tensor, sizes: object, dim: int = 0) -> tuple[Tensor, ...]:
    return _parts(x, dim % len(x.shape), [layout.shape for layout in s.results])


@view("unbind.int")
def unbind(s: Scope, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    dim %= len(x.shape)
    found: list[Tensor] = []
    for k, layout in enumerate(s.results):
        where = list(point(layout.shape))
        where.insert(dim, index.const(k))
        found.append(x.viewed(layout.shape, tuple(where)))
    return tuple(found)


@view("diagonal")
def diagonal(s: Scope, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rank = len(x.shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    *rest, along = point(s.result.shape)
    where = list(rest)
    for dim in sorted((dim1, dim2)):
        shift = max(-offset, 0) if dim == dim1 else max(offset, 0)
        where.insert(dim, index.add(along, index.const(shift)))
    return x.viewed(s.result.shape, tuple(where))

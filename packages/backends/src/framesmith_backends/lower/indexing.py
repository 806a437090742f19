"""Lowering of reads at places that other tensors hold: Note [Places].

Note [Places]: a place is checked where it is known, over the whole tensor of places, whatever of the result is used
later: a check is a definition of its own (`Scope.check`), which fails the run. Reads need not wait for it. They take
place 0 for one that lies outside (`ir.index.Picked`), so that nothing is read beyond a tensor until the run has failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from framesmith_backends.ir import index
from framesmith_backends.ir.expr import Expr, Op, guarded, number, picked
from framesmith_backends.ir.failure import Failure
from framesmith_backends.ir.index import Ix
from framesmith_backends.ir.size import Size, product, surely_positive
from framesmith_backends.lower.movement import conjunction
from framesmith_backends.lower.registry import rule
from framesmith_backends.lower.scope import Decline, Scope, broadcast_shape, cast
from framesmith_backends.lower.tensor import Shape, Tensor, broadcast, point

OUT_OF_RANGE = Failure("IndexError", "index out of range in self")


def _out_of_bounds(exception: str, dim: int, size: Size) -> Failure:
    known = f" with size {size}" if isinstance(size, int) else ""
    return Failure(exception, f"index is out of bounds for dimension {dim}{known}")


def _place(places: Tensor, where: tuple[Ix, ...]) -> Expr:
    if places.dtype not in ("i64", "i32"):
        raise Decline(f"places of type {places.dtype}")
    return cast(places.at(where), "i64")


def _from_end(place: Expr, size: Size) -> Expr:
    """A place that counts from the end where it is negative."""
    return Op("where", place < 0, place + size, place)


def _checked(s: Scope, shape: Shape, place: Expr, size: Size, failure: Failure) -> Ix:
    """The place, which is checked to lie in a dimension of that size wherever a tensor of `shape` has elements."""
    s.check(shape, Op("and", place >= 0, place < size), failure)
    return picked(place, size)


def _read(s: Scope, x: Tensor, where: Sequence[Ix]) -> Tensor:
    """The elements of `x` there. Of dimensions in which data tell the place, those without elements are not read."""
    told = [size for ix, size in zip(where, x.shape, strict=True) if index.picked(ix) and not surely_positive(size)]
    value, some = x.at(tuple(where)), conjunction([number(size, "i64") > 0 for size in told])
    return s.elementwise(s.result.shape, value if some is None else guarded(value, some))


@rule("index_select")
def index_select(s: Scope, x: Tensor, dim: int, places: Tensor) -> Tensor:
    if not x.shape:
        raise Decline("a tensor without dimensions")
    dim %= len(x.shape)
    where = list(point(s.result.shape))
    place = _place(places, (where[dim],) if places.shape else ())
    own = _place(places, point(places.shape))
    s.check(places.shape, Op("and", own >= 0, own < x.shape[dim]), OUT_OF_RANGE)
    where[dim] = picked(place, x.shape[dim])
    return _read(s, x, where)


@rule("embedding")
def embedding(
    s: Scope, table: Tensor, places: Tensor, padding: Size = -1, by_frequency: bool = False, sparse: bool = False
) -> Tensor:
    here = point(s.result.shape)
    place = _place(places, here[:-1])
    row = _checked(s, places.shape, place, table.shape[0], OUT_OF_RANGE)
    return _read(s, table, (row, here[-1]))


@rule("gather")
def gather(s: Scope, x: Tensor, dim: int, places: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not x.shape or len(x.shape) != len(places.shape):
        raise Decline("a tensor without dimensions")
    dim %= len(x.shape)
    here = point(places.shape)
    failure = _out_of_bounds("RuntimeError", dim, x.shape[dim])
    where = list(here)
    where[dim] = _checked(s, places.shape, _place(places, here), x.shape[dim], failure)
    return _read(s, x, where)


@rule("take")
def take(s: Scope, x: Tensor, places: Tensor) -> Tensor:
    count = product(x.shape)
    place = _from_end(_place(places, point(places.shape)), count)
    failure = Failure("IndexError", "out of range: tried to access what is no element of the tensor")
    flat = _checked(s, places.shape, place, count, failure)
    return _read(s, x, index.delinearize(flat, x.shape))


@rule("index.Tensor")
def index_tensor(s: Scope, x: Tensor, given: Sequence[Tensor | None]) -> Tensor:
    """The common shape of the places is where the first of their dimensions is if they are side by side, else first."""
    dims = [k for k, places in enumerate(given) if places is not None]
    shape = broadcast_shape([places.shape for places in given if places is not None])
    first = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    here = point(s.result.shape)
    at, rest = here[first : first + len(shape)], iter((*here[:first], *here[first + len(shape) :]))
    where: list[Ix] = []
    for dim, size in enumerate(x.shape):
        places = given[dim] if dim < len(given) else None
        if places is None:
            where.append(next(rest))
            continue
        place = _from_end(_place(broadcast(places, shape), at), size)
        where.append(_checked(s, s.result.shape, place, size, _out_of_bounds("IndexError", dim, size)))
    return _read(s, x, where)

"""Lowering of reads at places that other tensors hold, and of sums by place: Note [Places].

Note [Places]: a place is checked where it is known, over the whole tensor of places, whatever of the result is used
later: a check is a definition of its own (`Scope.check`), which fails the run. Reads need not wait for it. They take
place 0 for one that lies outside (`ir.index.Picked`), so that nothing is read beyond a tensor until the run has failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from framesmith_backends.ir import index
from framesmith_backends.ir.dtypes import compute_type
from framesmith_backends.ir.expr import Expr, Op, guarded, number, picked
from framesmith_backends.ir.failure import Failure
from framesmith_backends.ir.index import Ix
from framesmith_backends.ir.size import Size, product, surely_positive
from framesmith_backends.lower.movement import Value, conjunction
from framesmith_backends.lower.registry import rule
from framesmith_backends.lower.scope import Decline, Scope, broadcast_shape, cast
from framesmith_backends.lower.tensor import Shape, Tensor, axis, broadcast, point

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
    shape = _indexed_shape(x, given)
    if shape != s.result.shape:
        raise Decline("a shape that the fake result has not")  # places of one element, and of no dimension
    if not all(_lies_in_order(s, places) for places in given if places is not None):
        raise Decline("places in another order in memory, which ATen's result has, and its fake has not")
    return _read(s, x, _where(s, x, given, shape))


def _lies_in_order(s: Scope, places: Tensor) -> bool:
    """Whether the strides of a tensor's dimensions descend, but for those of one element."""
    flat = index.total(zip(places.index, s.program.layouts[places.source].strides, strict=True))
    steps = [index.coefficient(flat, axis(k, size)) for k, size in enumerate(places.shape) if size != 1]
    return all(outer is not None and inner is not None and outer >= inner for outer, inner in itertools.pairwise(steps))


def _indexed_shape(x: Tensor, given: Sequence[Tensor | None]) -> Shape:
    common, first = _common(given)
    rest = [size for k, size in enumerate(x.shape) if k >= len(given) or given[k] is None]
    return (*rest[:first], *common, *rest[first:])


def _where(s: Scope, x: Tensor, given: Sequence[Tensor | None], result: Shape) -> list[Ix]:
    """For each dimension of `x` the place of what is at the canonical point of a result of that shape."""
    common, first = _common(given)
    here = point(result)
    at, rest = here[first : first + len(common)], iter((*here[:first], *here[first + len(common) :]))
    where: list[Ix] = []
    for dim, size in enumerate(x.shape):
        places = given[dim] if dim < len(given) else None
        if places is None:
            where.append(next(rest))
            continue
        place = _from_end(_place(broadcast(places, common), at), size)
        where.append(_checked(s, result, place, size, _out_of_bounds("IndexError", dim, size)))
    return where


def _common(given: Sequence[Tensor | None]) -> tuple[Shape, int]:
    """The common shape of the places, and where it is: at the first of their dimensions if they are side by side."""
    dims = [k for k, places in enumerate(given) if places is not None]
    if any(given[k].dtype in ("b1", "u8") for k in dims):  # type: ignore[union-attr]
        raise Decline("masks among the places")
    common = broadcast_shape([places.shape for places in given if places is not None])
    return common, dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0


def _decline_half_types(x: Tensor) -> None:
    """Declines half types: ATen may round them once for all that is added to an element."""
    if compute_type(x.dtype) != x.dtype:
        raise Decline("sums of half types")


@rule("index_add")
def index_add(s: Scope, x: Tensor, dim: int, places: Tensor, source: Tensor, *, alpha: Value = 1) -> Tensor:
    if not x.shape or len(source.shape) != len(x.shape) or alpha != 1:
        raise Decline("tensors without dimensions, or a factor")
    _decline_half_types(x)
    dim %= len(x.shape)
    where = list(point(source.shape))
    place = _place(places, (where[dim],) if places.shape else ())
    where[dim] = _checked(s, source.shape, place, x.shape[dim], OUT_OF_RANGE)
    return s.added(x, source.shape, where, source.at(point(source.shape)))


@rule("scatter_add")
def scatter_add(s: Scope, x: Tensor, dim: int, places: Tensor, source: Tensor) -> Tensor:
    if not x.shape or not places.shape:
        raise Decline("tensors without dimensions")
    _decline_half_types(x)
    dim %= len(x.shape)
    here = point(places.shape)
    where, failure = list(here), _out_of_bounds("RuntimeError", dim, x.shape[dim])
    where[dim] = _checked(s, places.shape, _place(places, here), x.shape[dim], failure)
    return s.added(x, places.shape, where, source.at(here))


@rule("index_put")
def index_put(s: Scope, x: Tensor, given: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    if not accumulate:
        raise Decline("elements are replaced, not added to")
    shape = _indexed_shape(x, given)
    value = broadcast(values, shape).at(point(shape))
    return s.added(x, shape, _where(s, x, given, shape), value, repeatable=True)


@rule("embedding_dense_backward")
def embedding_dense_backward(
    s: Scope, grad: Tensor, places: Tensor, count: Size, padding: Size, by_frequency: bool
) -> Tensor:
    """Rows added up by place; those of the padding, and what lies outside, are left out."""
    if by_frequency:
        raise Decline("gradients by frequency")
    here = point(grad.shape)
    place = _place(places, here[:-1])
    inside = Op("and", Op("and", place >= 0, place < count), Op("ne", place, number(padding, "i64")))
    value = guarded(cast(grad.at(here), compute_type(grad.dtype)), inside)
    nothing = s.elementwise(s.result.shape, number(0, s.result.dtype))
    return s.added(nothing, grad.shape, (picked(place, count), here[-1]), value, repeatable=True)

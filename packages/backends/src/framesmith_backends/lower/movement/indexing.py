"""Lowering of gathers, scatter-adds and scatters by index tensors, and of gradients of embeddings: Note [Indices].

Note [Indices]: a place is checked where it is known, over the whole tensor of indices, whatever of the result is used
later: a check is a definition of its own (`Scope.check`), which fails the run. Reads need not wait for it. They take
place 0 for one that lies outside (`ir.symbolic.index.Indirect`), so that no read leaves its tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from framesmith_backends.ir.dtypes import compute_type, holds
from framesmith_backends.ir.expr import Expr, Index, Op, cast, guarded, indirect, number
from framesmith_backends.ir.program import Failure
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, Sym, hint, numel, surely_positive
from framesmith_backends.lower.movement.copies import Value, conjunction, decline_other_type
from framesmith_backends.lower.registry import rule
from framesmith_backends.lower.scope import Decline, Scope, broadcast_shape
from framesmith_backends.lower.tensor import Shape, Tensor, axis, broadcast, point

OUT_OF_RANGE = Failure("IndexError", "index out of range in self")


def _out_of_bounds(exception: str, dim: int, size: Size) -> Failure:
    known = f" with size {size}" if isinstance(size, int) else ""
    return Failure(exception, f"index is out of bounds for dimension {dim}{known}")


def _place(indices: Tensor, where: tuple[Ix, ...]) -> Expr:
    if indices.dtype not in ("i64", "i32"):
        raise Decline(f"indices of type {indices.dtype}")
    return cast(indices.at(where), "i64")


def _from_end(place: Expr, size: Size) -> Expr:
    """A place that counts from the end where it is negative."""
    return Op("where", place < 0, place + size, place)


def _checked(s: Scope, shape: Shape, place: Expr, size: Size, failure: Failure) -> Ix:
    """The place, which is checked to lie in a dimension of that size wherever a tensor of `shape` has elements."""
    s.check(shape, Op("and", place >= 0, place < size), failure)
    return indirect(place, size)


def _read(s: Scope, x: Tensor, where: Sequence[Ix]) -> Tensor:
    """The elements of `x` there. Of indirectly indexed dimensions, those without elements are not read."""
    sizes = [
        size for ix, size in zip(where, x.shape, strict=True) if index.indirect_atoms(ix) and not surely_positive(size)
    ]
    return s.made(guarded(x.at(where), conjunction([number(size, "i64") > 0 for size in sizes])))


@rule("index_select")
def index_select(s: Scope, x: Tensor, dim: int, indices: Tensor) -> Tensor:
    if not x.shape:
        raise Decline("a tensor without dimensions")
    dim %= len(x.shape)
    where = list(point(s.result.shape))
    place = _place(indices, (where[dim],) if indices.shape else ())
    own = _place(indices, point(indices.shape))
    s.check(indices.shape, Op("and", own >= 0, own < x.shape[dim]), OUT_OF_RANGE)
    where[dim] = indirect(place, x.shape[dim])
    return _read(s, x, where)


@rule("embedding")
def embedding(
    s: Scope, table: Tensor, indices: Tensor, padding: Size = -1, by_frequency: bool = False, sparse: bool = False
) -> Tensor:
    here = point(s.result.shape)
    place = _place(indices, here[:-1])
    row = _checked(s, indices.shape, place, table.shape[0], OUT_OF_RANGE)
    return _read(s, table, (row, here[-1]))


@rule("gather")
def gather(s: Scope, x: Tensor, dim: int, indices: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not x.shape or len(x.shape) != len(indices.shape):
        raise Decline("a tensor without dimensions")
    _, where = _along(s, x, dim, indices)
    return _read(s, x, where)


@rule("take")
def take(s: Scope, x: Tensor, indices: Tensor) -> Tensor:
    count = numel(x.shape)
    place = _from_end(_place(indices, point(indices.shape)), count)
    failure = Failure("IndexError", "out of range: tried to access what is no element of the tensor")
    flat = _checked(s, indices.shape, place, count, failure)
    return _read(s, x, index.delinearize(flat, x.shape))


@rule("index.Tensor")
def index_tensor(s: Scope, x: Tensor, given: Sequence[Tensor | None]) -> Tensor:
    shape = _indexed_shape(x, given)
    if shape != s.result.shape:
        raise Decline("a shape that the fake result has not")  # indices of one element, and of no dimension
    steps = [zip(_steps(s, indices), indices.shape, strict=True) for indices in given if indices is not None]
    if not all(_descend([step for step, size in one if size != 1]) for one in steps):
        raise Decline("indices in another order in memory, which ATen's result has, and its fake has not")
    return _read(s, x, _where(s, x, given, shape))


def _steps(s: Scope, given: Tensor) -> list[Size | None]:
    """The strides of a tensor's dimensions, None for one along which there is no single step."""
    flat = index.total(zip(given.index, s.program.layouts[given.source].strides, strict=True))
    return [index.coefficient(flat, axis(k, size)) for k, size in enumerate(given.shape)]


def _descend(steps: Sequence[Size | None]) -> bool:
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
        indices = given[dim] if dim < len(given) else None
        if indices is None:
            where.append(next(rest))
            continue
        place = _from_end(_place(broadcast(indices, common), at), size)
        where.append(_checked(s, result, place, size, _out_of_bounds("IndexError", dim, size)))
    return where


def _common(given: Sequence[Tensor | None]) -> tuple[Shape, int]:
    """The common shape of the indices, and where it is: at the first of their dimensions if they are side by side."""
    dims = [k for k, indices in enumerate(given) if indices is not None]
    if any(given[k].dtype in ("b1", "u8") for k in dims):  # type: ignore[union-attr]
        raise Decline("masks among the indices")
    common = broadcast_shape([indices.shape for indices in given if indices is not None])
    return common, dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0


def _added_wide(s: Scope, x: Tensor, shape: Shape, where: Sequence[Ix], value: Expr) -> Tensor:
    """`x` with `value` added there, in the compute type: low-precision types are rounded once for all sums."""
    wide = compute_type(x.dtype)
    if wide == x.dtype or not s.target.in_order:
        return s.added(x, shape, where, value)
    _decline_wide_rows(x, where)
    return s.copied(s.added(s.copied(x, wide), shape, where, cast(value, wide)), x.dtype)


#: Rows of so many elements, of tensors of so many, are read and written faster than their sums in float32 are.
WIDE_ROW, LARGE_TENSOR = 512, 1 << 20


def _decline_wide_rows(x: Tensor, where: Sequence[Ix]) -> None:
    """Declines sums of whole low-precision rows where ATen sorts the indices, and adds up rows in the cache."""
    columns = frozenset[Var]().union(*(index.variables(ix) for ix in where[1:]))
    atoms = index.indirect_atoms(where[0])
    if not atoms or any(part.inner & columns for part in atoms):
        return
    if hint(numel(x.shape[1:])) >= WIDE_ROW and hint(numel(x.shape)) >= LARGE_TENSOR:
        raise Decline("sums of wide rows of low-precision types")


def _parts(
    s: Scope, x: Tensor, dim: int, indices: Tensor, shape: Shape, failure: Failure, *, from_end: bool = False
) -> list[Ix]:
    """For a tensor of that shape, whose parts along a dimension have one index each, where in `x` each element is."""
    where = list(point(shape))
    place = _place(indices, (where[dim],) if indices.shape else ())
    where[dim] = _checked(s, shape, _from_end(place, x.shape[dim]) if from_end else place, x.shape[dim], failure)
    return where


@rule("index_add")
def index_add(s: Scope, x: Tensor, dim: int, indices: Tensor, source: Tensor, *, alpha: Value = 1) -> Tensor:
    if not x.shape or len(source.shape) != len(x.shape) or alpha != 1:
        raise Decline("tensors without dimensions, or a factor")
    decline_other_type(x, source)
    dim %= len(x.shape)
    where = _parts(s, x, dim, indices, source.shape, OUT_OF_RANGE)
    # ATen hands sums along the first and the last of several dimensions to `scatter_add`, by indices of 64 bits.
    rounds_once = len(x.shape) > 1 and dim in (0, len(x.shape) - 1) and indices.dtype == "i64"
    added = _added_wide if rounds_once else Scope.added
    return added(s, x, source.shape, where, source.at(point(source.shape)))


def _along(s: Scope, x: Tensor, dim: int, indices: Tensor) -> tuple[tuple[Ix, ...], list[Ix]]:
    """The points of the indices, and where in `x` each is written to: along `dim` at the place."""
    dim %= len(x.shape)
    here = point(indices.shape)
    where, failure = list(here), _out_of_bounds("RuntimeError", dim, x.shape[dim])
    where[dim] = _checked(s, indices.shape, _place(indices, here), x.shape[dim], failure)
    return here, where


@rule("scatter_add")
def scatter_add(s: Scope, x: Tensor, dim: int, indices: Tensor, source: Tensor) -> Tensor:
    if not x.shape or not indices.shape:
        raise Decline("tensors without dimensions")
    here, where = _along(s, x, dim, indices)
    return _added_wide(s, x, indices.shape, where, source.at(here))


@rule("index_put")
def index_put(s: Scope, x: Tensor, given: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    decline_other_type(x, values)
    masks = [(dim, indices) for dim, indices in enumerate(given) if indices is not None]
    if not accumulate and [mask.dtype for _, mask in masks] == ["b1"]:
        return _masked(s, x, *masks[0], values)
    shape = _indexed_shape(x, given)
    where, value = _where(s, x, given, shape), broadcast(values, shape).at(point(shape))
    if accumulate:
        return s.added(x, shape, where, value, repeatable=True)
    if not _is_taken_in_order(s, values, given, shape):
        raise Decline("indices that ATen takes in another order")
    _decline_one_by_one(shape, where)
    return s.replaced(x, shape, where, value)


def _is_taken_in_order(s: Scope, values: Tensor, given: Sequence[Tensor | None], result: Shape) -> bool:
    """Whether ATen's loops over the common dimensions of the indices are nested as these are, as far as that is known.

    They go by the strides of the first operand, the values before the indices, that has several which are not 0.
    """
    common, first = _common(given)
    end = max(len(values.shape) - (len(result) - first - len(common)), 0)
    own = slice(max(end - len(common), 0), end)
    if all(size == 1 for size in values.shape[own]):
        return True  # whichever comes last
    operands = [(values, own), *((indices, slice(None)) for indices in given if indices is not None)]
    for operand, part in operands:
        steps = zip(_steps(s, operand)[part], operand.shape[part], strict=True)
        if not _descend([step for step, size in steps if size != 1 and step != 0]):
            return False
    return True


#: Of so many elements, more threads than these replace single elements faster, in no order, than one does by turns.
FEW_INDICES, FEW_THREADS = 1 << 15, 4


def _decline_one_by_one(shape: Shape, where: Sequence[Ix]) -> None:
    """Declines many elements that one thread would replace, where ATen's are many and keep no order."""
    if torch.are_deterministic_algorithms_enabled():
        return
    several = any(index.of(axis(k, size)) in where for k, size in enumerate(shape) if size != 1)
    if not several and hint(numel(shape)) >= FEW_INDICES and torch.get_num_threads() > FEW_THREADS:
        raise Decline("elements one after another")


def _masked(s: Scope, x: Tensor, first: int, mask: Tensor, values: Tensor) -> Tensor:
    """`x` with values where the mask of its dimensions from `first` on holds, the same at all its elements."""
    end = first + len(mask.shape)
    if mask.shape != x.shape[first:end]:
        raise Decline("a mask of another shape")
    here = point(x.shape)
    where, sizes = (*here[:first], index.ZERO, *here[end:]), (*x.shape[:first], 1, *x.shape[end:])
    behind = len(sizes) - len(values.shape)
    if behind < 0 or any(size not in (1, wanted) for size, wanted in zip(values.shape, sizes[behind:], strict=True)):
        raise Decline("other values at each place of a mask")
    at = [ix if size != 1 else index.ZERO for ix, size in zip(where[behind:], values.shape, strict=True)]
    inner = compute_type(x.dtype)
    return s.made(Op("where", mask.at(here[first:end]), cast(values.at(at), inner), cast(x.at(here), inner)))


@rule("scatter.src", "scatter.value")
def scatter(s: Scope, x: Tensor, dim: int, indices: Tensor, source: Tensor | Value) -> Tensor:
    if not x.shape or not indices.shape:
        raise Decline("tensors without dimensions")
    here, where = _along(s, x, dim, indices)
    return s.replaced(x, indices.shape, where, source.at(here) if isinstance(source, Tensor) else _filling(x, source))


@rule("index_copy")
def index_copy(s: Scope, x: Tensor, dim: int, indices: Tensor, source: Tensor) -> Tensor:
    if not x.shape or len(source.shape) != len(x.shape):
        raise Decline("tensors without dimensions")
    decline_other_type(x, source)
    dim %= len(x.shape)
    where = _parts(s, x, dim, indices, source.shape, _out_of_bounds("IndexError", dim, x.shape[dim]))
    _decline_one_by_one(source.shape, where)
    return s.replaced(x, source.shape, where, source.at(point(source.shape)))


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(s: Scope, x: Tensor, dim: int, indices: Tensor, value: Tensor | Value) -> Tensor:
    if not x.shape:
        raise Decline("a tensor without dimensions")
    dim %= len(x.shape)
    count = indices.shape[0] if indices.shape else 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    where = _parts(s, x, dim, indices, shape, _out_of_bounds("IndexError", dim, x.shape[dim]), from_end=True)
    return s.replaced(x, shape, where, _filling(x, value))


def _filling(x: Tensor, value: Tensor | Value) -> Expr:
    """The number that elements of `x` become. Those that its type does not hold are errors of ATen's."""
    if isinstance(value, Tensor):
        decline_other_type(x, value)
        return value.at(())
    if isinstance(value, (bool, int, float)) and holds(x.dtype, value):
        return number(value, x.dtype)
    if x.dtype == "f64" or (isinstance(value, Sym) and x.dtype in ("f32", "i64")):
        return number(value, x.dtype)
    raise Decline("a number that the type may not hold")


@rule("embedding_dense_backward")
def embedding_dense_backward(
    s: Scope, grad: Tensor, indices: Tensor, count: Size, padding: Size, by_frequency: bool
) -> Tensor:
    """Rows added up by place; those of the padding, and what lies outside, are left out."""
    if by_frequency:
        raise Decline("gradients by frequency")
    here = point(grad.shape)
    place = _place(indices, here[:-1])
    inside = Op("and", Op("and", place >= 0, place < count), Op("ne", place, number(padding, "i64")))
    value = guarded(cast(grad.at(here), compute_type(grad.dtype)), inside)
    nothing = s.elementwise(s.result.shape, number(0, s.result.dtype))
    return s.added(nothing, grad.shape, (indirect(place, count), here[-1]), value, repeatable=True)


#: Modes of bags of embeddings: sums, and means. (Others are maxima.)
SUMMED, AVERAGED = 0, 1


@rule("_embedding_bag_backward")
def embedding_bag_backward(
    s: Scope, grad: Tensor, indices: Tensor, offsets: Tensor, bag_of: Tensor, sizes: Tensor, largest: Tensor,
    count: Size, by_frequency: bool, mode: int, sparse: bool, weights: Tensor | None, padding: Size = -1,
) -> Tensor:  # fmt: skip
    """Rows added up by place, where all bags have one length."""
    if s.target.on_gpu or by_frequency or sparse or weights is not None or mode not in (SUMMED, AVERAGED):
        raise Decline("bags on GPUs, weighted ones, by frequency, of maxima, sparse")
    if compute_type(grad.dtype) != grad.dtype or padding != -1:
        raise Decline("low-precision types, which ATen rounds by steps of its own, or padding")
    length = _length_of_bags(s, offsets)
    if length is None or indices.shape != (offsets.shape[0] * length,):
        raise Decline("bags of several lengths")
    shape = (offsets.shape[0], length, grad.shape[1])
    bag, within, column = point(shape)
    place = cast(indices.at((index.total(((bag, length), (within, 1))),)), "i64")
    value = grad.at((bag, column))
    nothing = s.elementwise(s.result.shape, number(0, s.result.dtype))
    scaled = value * (1.0 / length) if mode == AVERAGED else value
    inside = guarded(scaled, Op("and", place >= 0, place < count))
    return s.added(nothing, shape, (indirect(place, count), column), inside, repeatable=True)


def _length_of_bags(s: Scope, offsets: Tensor) -> int | None:
    """The distance of the beginnings of bags, if it is the same for all; None if it is unbacked."""
    made = s.program.defs.get(offsets.source)
    if made is None or not isinstance(made.body, Index) or len(made.axes) != 1 or offsets.index != point(offsets.shape):
        return None
    (axis_of,) = made.axes
    step = 0 if axis_of is None else index.coefficient(made.body.ix, axis_of)
    starts_at_0 = axis_of is not None and index.substitute(made.body.ix, {axis_of: index.ZERO}) is index.ZERO
    return step if isinstance(step, int) and step > 0 and starts_at_0 else None

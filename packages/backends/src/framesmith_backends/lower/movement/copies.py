"""Lowering of operations that move elements into new tensors: concatenation, flips, rolls, masks, padding, creation.

Tensors that are read across their rows are copied by kernels of their own, which are walked in tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from framesmith_backends.ir.dtypes import compute_type, is_float
from framesmith_backends.ir.expr import Expr, Index, Number, Op, cast, folded, guarded, indirect, number
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import Size, Sym, hint, surely_at_least, symbols_of
from framesmith_backends.lower.movement.views import moved, normal_place, normal_start, unsqueezed
from framesmith_backends.lower.registry import Rule, add_row, rule
from framesmith_backends.lower.scope import Decline, Scope
from framesmith_backends.lower.tensor import Tensor, axis, point

# A concatenation of more tensors than this is copied by ATen: every part is a test in the loop.
LARGEST_CAT = 4


Value = bool | int | float | Sym | Number


def at_least(ix: Ix, bound: Size) -> Expr:
    return Op("ge", Index(ix), number(bound, "i64"))


def below(ix: Ix, bound: Size) -> Expr:
    return Op("lt", Index(ix), number(bound, "i64"))


def inside(ix: Ix, size: Size) -> Expr | None:
    """The condition that 0 <= ix < size; None where it always holds."""
    low, high = index.bounds(ix)
    return conjunction([
        None if surely_at_least(low, 0) else at_least(ix, 0),
        None if surely_at_least(size - 1, high) else below(ix, size),
    ])  # fmt: skip


def conjunction(conditions: Sequence[Expr | None]) -> Expr | None:
    """The condition that all of them hold; None where each, being None, always does."""
    known = [condition for condition in conditions if condition is not None]
    return folded("and", known) if known else None


def decline_other_type(x: Tensor, values: Tensor) -> None:
    """Declines values of another type, which fakes take and ATen refuses."""
    if values.dtype != x.dtype:
        raise Decline("values of another type")


def choose(s: Scope, condition: Expr | None, value: Expr, fill: Value) -> Tensor:
    """`value` where the condition holds, else `fill`."""
    if condition is None:
        return s.elementwise(s.result.shape, value)
    inner = compute_type(s.result.dtype)
    body: Expr = cast(guarded(value, condition), inner)
    if fill != 0 or (isinstance(fill, float) and math.copysign(1, fill) < 0):  # there is a zero below 0
        body = Op("where", condition, body, number(fill, inner))
    return s.made(body)


@rule("slice_backward")
def slice_backward(
    s: Scope, grad: Tensor, input_sizes: Sequence[Size], dim: int, start: Size, end: Size, step: Size
) -> Tensor:
    dim %= len(input_sizes)
    if step != 1:
        raise Decline("a strided slice")
    where = moved(point(s.result.shape), dim, -normal_start(start, input_sizes[dim]))
    return choose(s, inside(where[dim], grad.shape[dim]), grad.at(where), 0)


def _selected(s: Scope, dim: int, at: Size) -> tuple[list[Ix], Expr]:
    """The positions in what is selected from the result, and whether an element of the result is selected."""
    dim %= len(s.result.shape)
    where = list(point(s.result.shape))
    return where, Op("eq", Index(where.pop(dim)), number(normal_place(at, s.result.shape[dim]), "i64"))


@rule("select_backward")
def select_backward(s: Scope, grad: Tensor, input_sizes: Sequence[Size], dim: int, at: Size) -> Tensor:
    where, is_selected = _selected(s, dim, at)
    return choose(s, is_selected, grad.at(where), 0)


def _written(s: Scope, x: Tensor, source: Tensor, where: Sequence[Ix], condition: Expr | None) -> Tensor:
    """`x` with `source` where the condition holds: of each element, the place in `source` is `where`."""
    decline_other_type(x, source)
    value = source.at(where)
    if condition is not None:
        inner = compute_type(s.result.dtype)
        here = cast(x.at(point(s.result.shape)), inner)
        value = Op("where", condition, cast(guarded(value, condition), inner), here)
    return s.made(value)


def _any_unbacked(s: Scope, numbers: Sequence[Size | None]) -> bool:
    """Whether one of the numbers is unbacked."""
    bindings = [s.program.bindings.get(symbol) for symbol in symbols_of(one for one in numbers if one is not None)]
    return any(binding is not None and binding.source in s.program.calls for binding in bindings)


def _spans(start: Size | None, end: Size | None, count: Size) -> bool:
    """Whether so many elements lie between these positions, if all of them are there: that is checked by the graph."""
    return end is not None and end - (0 if start is None else start) == count


@rule("slice_scatter")
def slice_scatter(
    s: Scope,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Tensor:
    dim %= len(x.shape)
    where = list(point(s.result.shape))
    first, count = normal_start(start, x.shape[dim]), source.shape[dim]
    if _any_unbacked(s, (start, end, count)) and (_any_unbacked(s, (count,)) or not _spans(start, end, count)):
        raise Decline("a part of unbacked length: ATen compares it with what is written")
    condition: Expr | None = None
    if step == 1:
        where[dim] = index.add(where[dim], index.const(-first))
    elif isinstance(first, int) and isinstance(step, int) and s.result.strides[dim] != 1:
        ahead = index.add(where[dim], index.const(-first % step))  # its quotients are of what is not negative
        condition = Op("eq", Index(index.mod(ahead, step)), number(0, "i64"))
        where[dim] = index.add(index.floordiv(ahead, step), index.const(-((first + step - 1) // step)))
    else:
        raise Decline("strided elements along a row, or of dynamic size")
    return _written(s, x, source, where, conjunction([condition, inside(where[dim], count)]))


add_row(lambda s, x, source, dim, at: _written(s, x, source, *_selected(s, dim, at)), "select_scatter")


@rule("cat")
def cat(s: Scope, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = s.result.shape
    dim %= len(shape)
    parts = [t for t in tensors if len(t.shape) == len(shape)]
    if len(parts) != len(tensors) or len(parts) > LARGEST_CAT:
        raise Decline(f"a concatenation of {len(tensors)} tensors (or of legacy empty ones)")
    inner = compute_type(s.result.dtype)
    here = point(shape)
    body: Expr | None = None
    end = shape[dim]
    for part in reversed(parts):
        first = end - part.shape[dim]
        if first == end:
            continue
        where = moved(here, dim, -first)
        value = cast(guarded(part.at(where), inside(where[dim], part.shape[dim])), inner)
        body = value if body is None else Op("where", below(here[dim], end), value, body)
        end = first
    if body is None:
        raise Decline("a concatenation of nothing")
    return s.made(body)


@rule("stack")
def stack(s: Scope, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dim %= len(s.result.shape)
    return cat(s, [unsqueezed(part, (*part.shape[:dim], 1, *part.shape[dim:]), dim) for part in tensors], dim)


@rule("flip")
def flip(s: Scope, x: Tensor, dims: Sequence[int]) -> Tensor:
    where = list(point(x.shape))
    for dim in dims if where else ():  # the one dimension of a number may be named as well
        where[dim] = index.total(((where[dim], -1),), x.shape[dim] - 1)
    return s.made(x.at(where))


@rule("roll")
def roll(s: Scope, x: Tensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Tensor:
    if len(dims) != len(shifts) or len({dim % len(x.shape) for dim in dims}) != len(dims):
        raise Decline("a tensor rolled as a line, or a dimension rolled twice")
    where = list(point(x.shape))
    along: tuple[int, Size] | None = None
    for dim, shift in zip(dims, shifts, strict=True):
        dim, size = dim % len(x.shape), x.shape[dim]
        if size == 0:
            continue
        steps = shift % size
        if s.result.strides[dim] == 1 and along is None:
            along = dim, steps
        else:
            where[dim] = index.mod(index.add(where[dim], index.const(size - steps)), size)
    if along is None:
        return s.made(x.at(where))
    # Along a row there are two parts: the row's end comes first, then its beginning.
    dim, steps = along
    here, inner = where[dim], compute_type(x.dtype)
    first, behind = below(here, steps), at_least(here, steps)
    parts = []
    for condition, distance in ((first, x.shape[dim] - steps), (behind, -steps)):
        parts.append(cast(guarded(x.at(moved(where, dim, distance)), condition), inner))
    return s.made(Op("where", first, *parts))


@rule("repeat")
def repeat(s: Scope, x: Tensor, repeats: Sequence[Size]) -> Tensor:
    here = point(s.result.shape)[len(s.result.shape) - len(x.shape) :]
    where = tuple(index.mod(i, size) if size != 0 else index.ZERO for i, size in zip(here, x.shape, strict=True))
    return s.made(x.at(where))


def _triangle(upper: bool) -> Rule:
    def lowered(s: Scope, x: Tensor, diagonal: Size = 0) -> Tensor:
        *_, row, column = here = point(x.shape)
        distance = index.total(((column, 1), (row, -1)))
        test = at_least(distance, diagonal) if upper else below(distance, diagonal + 1)
        return choose(s, test, x.at(here), 0)

    return lowered


add_row(_triangle(upper=False), "tril")
add_row(_triangle(upper=True), "triu")


def _filled(s: Scope, value: Value) -> Tensor:
    if isinstance(value, (Sym, Number)):
        return s.made(number(value, compute_type(s.result.dtype)))
    if not isinstance(value, (bool, int, float)):
        raise Decline(f"a fill value of type {type(value).__name__}")
    return s.elementwise(s.result.shape, number(value, s.result.dtype))


@rule("full", "full_like", "new_full", "fill.Scalar")
def full(s: Scope, *args: Any, **options: Any) -> Tensor:
    return _filled(s, args[-1] if len(args) > 1 else options["fill_value"])


add_row(lambda s, value, **options: _filled(s, value), "scalar_tensor")
add_row(lambda s, *args, **options: _filled(s, 0), "zeros_like")
add_row(lambda s, *args, **options: _filled(s, 1), "ones_like")


@rule("arange", "arange.start", "arange.start_step")
def arange(s: Scope, *args: Any, **options: Any) -> Tensor:
    if is_float(s.result.dtype) or not all(isinstance(a, (int, Sym)) for a in args):
        raise Decline("arange of other than integers")
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    (here,) = point(s.result.shape)
    return s.made(Index(index.total(((here, step),), start)))


# From this many elements on, a transposing copy is a kernel of its own, walked in tiles.
TILED_COPY = 4096


def is_transposing(s: Scope, x: Tensor) -> bool:
    """Whether the source and the result are contiguous along different dimensions, and large."""
    if hint(s.result.numel) < TILED_COPY:
        return False
    source = s.program.layouts[x.source]
    flat = index.total(zip(x.index, source.strides, strict=True))
    steps = [index.coefficient(flat, axis(k, size)) for k, size in enumerate(x.shape)]
    inner = [k for k, (step, size) in enumerate(zip(s.result.strides, x.shape, strict=True)) if step == 1 and size != 1]
    return bool(inner) and steps[inner[-1]] not in (0, 1) and 1 in steps


def walks_in_tiles(s: Scope) -> bool:
    """Whether copies of the result's sizes are kernels that walk in tiles, as those of the CPU are."""
    return not isinstance(s.result.numel, Sym) and s.target.in_order


def transposed_copy(s: Scope, x: Tensor) -> Tensor:
    """The tensor with the result's rows, in memory."""
    copied = s.copied(x)
    s.program.alone.add(copied.source)
    return copied


def along_rows(s: Scope, x: Tensor) -> Tensor:
    """The tensor for a rule that reads it several times: copied first where it would be read across rows each time."""
    return transposed_copy(s, x) if walks_in_tiles(s) and is_transposing(s, x) else x


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
        return guarded(x.at((*where[:row], at, *where[row + 1 :])), condition)

    first_part = element(before, is_before if before.terms else None)
    last_part = element(behind, is_behind if behind.terms else None)
    parts = (first_part, last_part, element(place, is_inside))
    first, last, rest = (cast(part, compute_type(x.dtype)) for part in parts)
    return s.made(Op("where", is_before, first, Op("where", is_behind, last, rest)))


def _is_long(size: Size, padded: Size) -> bool:
    """Whether most of a padded row is the row itself, which kernels then compute as a loop of its own."""
    return isinstance(size, int) and isinstance(padded, int) and padded <= size + size // 4


def _reflected(place: Ix, size: Size) -> tuple[Ix, Ix]:
    return index.scale(place, -1), index.total(((place, -1),), 2 * size - 2)


add_row(lambda s, x, padding: _padded(s, x, padding, _reflected), "reflection_pad2d", "reflection_pad3d")
add_row(
    lambda s, x, padding: _padded(s, x, padding, lambda _, size: (index.ZERO, index.const(size - 1))),
    "replication_pad1d", "replication_pad2d", "replication_pad3d",
)  # fmt: skip

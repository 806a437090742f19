"""Lowering of pooling over windows, and of its gradients: a window's elements are read where they are, one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from framesmith_backends.ir.dtypes import compute_type, is_float
from framesmith_backends.ir.expr import Expr, Index, Op, cast, folded, guarded, number
from framesmith_backends.ir.ops import REDUCTIONS
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix
from framesmith_backends.ir.symbolic.size import Size
from framesmith_backends.lower.movement.copies import below, conjunction, inside
from framesmith_backends.lower.registry import Rule, add_row, rule
from framesmith_backends.lower.scope import Decline, Scope
from framesmith_backends.lower.tensor import Tensor, point

Numbers = Sequence[int] | int

#: Windows of more elements are ATen's: the text of a kernel names each element.
LARGEST_WINDOW = 49
#: Gradients to which more results add are ATen's.
MOST_CONTRIBUTIONS = 16


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the last dimensions of a tensor: what `max_pool2d` takes, a number for each dimension."""

    sizes: tuple[Size, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.kernel)

    def first(self, where: Sequence[Ix]) -> list[Ix]:
        """The beginnings of the windows at these positions of the result, padding included: they may be outside."""
        return [index.total(((ix, k),), -p) for ix, k, p in zip(where, self.stride, self.padding, strict=True)]

    def elements(
        self, x: Tensor, outer: Sequence[Ix], first: Sequence[Ix], dtype: str
    ) -> Iterator[tuple[list[Ix], Expr | None, Expr]]:
        """Each element of the window that begins at `first`, in eager's order: place, when it is no padding, value."""
        for step in itertools.product(*(range(k) for k in self.kernel)):
            positions = [index.add(ix, index.const(k * d)) for ix, k, d in zip(first, step, self.dilation, strict=True)]
            valid = conjunction([inside(ix, size) for ix, size in zip(positions, self.sizes, strict=True)])
            yield positions, valid, cast(guarded(x.at((*outer, *positions)), valid), dtype)


def _numbers(values: Numbers, rank: int, name: str) -> tuple[int, ...]:
    found = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not all(type(n) is int for n in found):
        raise Decline(f"a {name} that changes between calls")
    return found * rank if len(found) == 1 else found


def windows(
    x: Tensor, rank: int, kernel: Numbers, stride: Numbers, padding: Numbers = 0, dilation: Numbers = 1
) -> Windows:
    """The windows of a call, whose arguments may be one number for all dimensions; Decline if they are large."""
    size = _numbers(kernel, rank, "kernel size")
    found = Windows(
        x.shape[-rank:], size, _numbers(stride, rank, "stride") if stride else size,
        _numbers(padding, rank, "padding"), _numbers(dilation, rank, "dilation"),
    )  # fmt: skip
    if found.count > LARGEST_WINDOW:
        raise Decline(f"windows of {found.count} elements")
    return found


def _flat(positions: Sequence[Ix], sizes: Sequence[Size]) -> Expr:
    return Index(index.linearize(positions, sizes))


def _first_inside(first: Sequence[Ix], window: Windows) -> Expr:
    """The flat place of a window's first element that is no padding: the answer where none is larger than -inf."""
    if not any(window.padding):
        return _flat(first, window.sizes)
    if any(d != 1 for d in window.dilation):
        raise Decline("the indices of dilated windows with padding")
    found: Expr = number(0, "i64")
    for ix, size in zip(first, window.sizes, strict=True):
        here = Op("max", Index(ix), number(0, "i64"))
        found = Op("add", Op("mul", found, number(size, "i64")), here)
    return found


def _max_pool(
    s: Scope, rank: int, x: Tensor, kernel: Numbers, stride: Numbers = (), padding: Numbers = 0, dilation: Numbers = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The first of the largest elements of each window, the last NaN if there is one, and its flat place."""
    window, inner, here = (
        windows(x, rank, kernel, stride, padding, dilation),
        compute_type(x.dtype),
        point(s.result.shape),
    )
    outer, first = here[:-rank], window.first(here[-rank:])
    best: Expr = number(REDUCTIONS["max"].start(inner), inner)
    place = _first_inside(first, window)
    for positions, valid, value in window.elements(x, outer, first, inner):
        larger: Expr = Op("gt", value, best)
        if is_float(inner):
            larger = Op("or", larger, Op("isnan", value))
        larger = larger if valid is None else Op("and", valid, larger)
        best, place = Op("where", larger, value, best), Op("where", larger, _flat(positions, window.sizes), place)
    return s.made(best), s.elementwise(s.result.shape, place)


def _divisor(window: Windows, first: Sequence[Ix], dtype: str, padded: bool, given: int | None) -> Expr:
    """The divisor of the means of windows that begin at these positions.

    That is the number of all elements if `padded`, or of those that are no padding; or the number given.
    """
    if given is not None:
        return number(given, dtype)
    lengths: list[Expr] = []
    for ix, size, kernel, padding in zip(first, window.sizes, window.kernel, window.padding, strict=True):
        end, last = index.total(((ix, 1),), kernel), size + padding if padded else size
        if inside(index.total(((end, 1),), -1), last) is None and (padded or not padding):
            lengths.append(number(kernel, "i64"))
            continue
        begin = Index(ix) if padded else Op("max", Index(ix), number(0, "i64"))
        lengths.append(Op("sub", Op("min", Index(end), number(last, "i64")), begin))
    return cast(folded("mul", lengths), dtype)


def _avg_pool(
    s: Scope, rank: int, x: Tensor, kernel: Numbers, stride: Numbers = (), padding: Numbers = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window."""
    window, inner, here = windows(x, rank, kernel, stride, padding), compute_type(x.dtype), point(s.result.shape)
    if not is_float(x.dtype):
        raise Decline("means of integers")
    outer, first = here[:-rank], window.first(here[-rank:])
    total = folded("add", [value for _, _, value in window.elements(x, outer, first, inner)])
    return s.made(Op("div", total, _divisor(window, first, inner, count_include_pad, divisor_override)))


@rule("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(s: Scope, x: Tensor, output_size: Sequence[Size]) -> Tensor:
    """Adjacent windows, where the sizes divide."""
    kernel = []
    for size, wanted in zip(x.shape[-2:], output_size, strict=True):
        if type(size) is not int or type(wanted) is not int or size % wanted:
            raise Decline("windows of different sizes")
        kernel.append(size // wanted)
    return _avg_pool(s, 2, x, kernel)


def _covering(s: Scope, window: Windows, results: Sequence[Size]) -> Iterator[tuple[list[Ix], Expr | None]]:
    """The positions in the result of the windows that may hold each element, in order, and when they do."""
    if any(d != 1 for d in window.dilation):
        raise Decline("the gradient of dilated windows")
    counts = [-(-k // stride) for k, stride in zip(window.kernel, window.stride, strict=True)]
    if math.prod(counts) > MOST_CONTRIBUTIONS:
        raise Decline(f"elements that are in {math.prod(counts)} windows")
    here = point(s.result.shape)[-len(window.kernel) :]
    padded = [index.add(ix, index.const(p)) for ix, p in zip(here, window.padding, strict=True)]
    for back in itertools.product(*(reversed(range(n)) for n in counts)):
        positions, tests = [], []
        for ix, kernel, stride, result, b in zip(padded, window.kernel, window.stride, results, back, strict=True):
            place = index.add(index.floordiv(ix, stride), index.const(-b))
            positions.append(place)
            tests.append(inside(place, result))
            offset = index.add(ix, index.scale(place, -stride))
            if b * stride + stride > kernel:
                tests.append(below(offset, kernel))
        yield positions, conjunction(tests)


@rule("max_pool2d_with_indices_backward")
def max_pool2d_backward(
    s: Scope, grad: Tensor, x: Tensor, kernel: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers,
    ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    window, inner, here = (
        windows(x, 2, kernel, stride, padding, dilation),
        compute_type(grad.dtype),
        point(s.result.shape),
    )
    mine = _flat(here[-2:], window.sizes)
    total: Expr = number(0.0, inner)
    for positions, valid in _covering(s, window, grad.shape[-2:]):
        where = (*here[:-2], *positions)
        chosen, value = guarded(indices.at(where), valid), guarded(cast(grad.at(where), inner), valid)
        test: Expr = Op("eq", chosen, mine)
        test = test if valid is None else Op("and", valid, test)
        total = Op("add", total, Op("where", test, value, number(0.0, inner)))
    return s.made(total)


@rule("avg_pool2d_backward")
def avg_pool2d_backward(
    s: Scope, grad: Tensor, x: Tensor, kernel: Numbers, stride: Numbers, padding: Numbers, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    window, inner, here = windows(x, 2, kernel, stride, padding), compute_type(grad.dtype), point(s.result.shape)
    total: Expr = number(0.0, inner)
    for positions, valid in _covering(s, window, grad.shape[-2:]):
        value = cast(grad.at((*here[:-2], *positions)), inner)
        divisor = _divisor(window, window.first(positions), inner, count_include_pad, divisor_override)
        share = Op("div", value, divisor)
        total = Op("add", total, guarded(share, valid))
    return s.made(total)


def _of_rank(pool: Rule, rank: int) -> Rule:
    return lambda s, x, *settings: pool(s, rank, x, *settings)


for _rank in (2, 3):
    add_row(_of_rank(_max_pool, _rank), f"max_pool{_rank}d_with_indices")
    add_row(_of_rank(_avg_pool, _rank), f"avg_pool{_rank}d")

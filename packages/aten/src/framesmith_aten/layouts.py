"""Memory layouts of strided tensors: density, overlaps, strides."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_aten.symbolic import (
    as_expressions,
    at_least,
    equal,
    has_symbols,
    hint_or_guess,
    holds,
    holds_at_present,
    is_symbolic,
    is_unbacked,
)
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import no_dispatch


def is_dense(size: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether the elements fill memory in some order of the dimensions; for symbols, whether that is known."""
    if any(map(is_symbolic, (*size, *stride))):
        return _dense_order(size, stride) is not None or any(equal(length, 0) for length in size)
    expected = 1
    for step, length in sorted((step, length) for step, length in zip(stride, size, strict=True) if length != 1):
        if step != expected:
            return 0 in size
        expected *= length
    return True


def _dense_order(size: Sequence[Any], stride: Sequence[Any]) -> list[int] | None:
    """Return the dimensions not known to have size 1, the fastest in memory first; None where there may be gaps."""
    left = [dim for dim, length in enumerate(size) if not equal(length, 1)]
    order: list[int] = []
    expected: tuple[Any, Any] = (1, 1)
    while left:
        dim = next((dim for dim in left if any(equal(stride[dim], step) for step in expected)), None)
        if dim is None:
            return None
        left.remove(dim)
        order.append(dim)
        expected = _beyond(expected, size[dim])
    return order


def _beyond(steps: tuple[Any, Any], length: Any) -> tuple[Any, Any]:
    """Return the stride of the next outer dimension, given this one's, under both conventions for size 0.

    Torch counts an empty dimension as one element; for an unknown length either may have been assumed.
    """
    some = torch.sym_max(length, 1) if is_symbolic(length) else max(length, 1)  # type: ignore[no-untyped-call]
    return steps[0] * length, steps[1] * some


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the dimensions of size above 1 of a dense tensor, the slowest in memory first; None for gaps."""
    size, stride = tensor.shape, tensor.stride()
    if has_symbols(tensor):
        order = _dense_order(size, stride)
        return None if order is None else tuple(reversed(order))
    if not is_dense(size, stride):
        return None
    return tuple(sorted((dim for dim, length in enumerate(size) if length > 1), key=lambda dim: -int(stride[dim])))


def is_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor is contiguous; for symbols, whether that is known."""
    if not has_symbols(tensor):
        return tensor.is_contiguous()
    return _is_contiguous(tensor.shape, tensor.stride())


def _is_contiguous(size: Sequence[Any], stride: Sequence[Any]) -> bool:
    expected: tuple[Any, Any] = (1, 1)
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if not (equal(length, 1) or any(equal(step, one) for one in expected)):
            return False
        expected = _beyond(expected, length)
    return True


def dims_by_stride(stride: Sequence[Any]) -> list[int]:
    """Return the dimensions, the slowest in memory first, of equal strides the earlier.

    Adds a guard on the order of symbolic strides where it is not known.
    """
    if any(map(is_symbolic, stride)):

        def slower(one: int, two: int) -> int:
            return _slower(stride[one], stride[two])

        return sorted(range(len(stride)), key=functools.cmp_to_key(slower))
    return sorted(range(len(stride)), key=lambda dim: (-stride[dim], dim))


def _slower(first: Any, second: Any) -> int:
    if equal(first, second):
        return 0
    if equal(second, 0) or equal(first, 0):
        return -1 if equal(second, 0) else 1
    return -1 if at_least(first, second) else 1


def in_order(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return the elements in dense memory with this order of dimensions, slowest first; perhaps the tensor itself."""
    return tensor.permute(*order).contiguous().permute(*(order.index(dim) for dim in range(len(order))))


def span(tensor: torch.Tensor) -> tuple[Any, Any]:
    """Return the bytes (first, one past the last) that a strided tensor occupies; equal without elements."""
    return spanned(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.element_size())


def spanned(size: Sequence[Any], stride: Sequence[Any], offset: Any, width: int) -> tuple[Any, Any]:
    """`span` of a layout with elements of `width` bytes."""
    first = offset * width
    if equal(math.prod(size), 0):
        return first, first
    last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return first, first + (last + 1) * width


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether a dimension of size above 1 has stride 0."""
    return tensor.layout is torch.strided and _has_zero_stride(tensor.shape, tensor.stride())


def is_interleaved(tensor: torch.Tensor) -> bool:
    """Whether a nonzero stride does not exceed the extent of the dimensions inside: elements may overlap."""
    return tensor.layout is torch.strided and _is_interleaved(tensor.shape, tensor.stride())


def may_overlap_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a strided tensor may share memory."""
    return tensor.layout is torch.strided and may_share_elements(tensor.shape, tensor.stride())


def may_share_elements(size: Sequence[Any], stride: Sequence[Any], is_so: Callable[[Any], bool] = holds) -> bool:
    """Whether two elements of the layout may share memory; `is_so` decides conditions on symbols."""
    if any(map(is_symbolic, (*size, *stride))) and _is_contiguous(size, stride):  # sooner known than the following
        return False
    return _has_zero_stride(size, stride) or _is_interleaved(size, stride, is_so)


def _has_zero_stride(size: Sequence[Any], stride: Sequence[Any]) -> bool:
    if holds(math.prod(size) < 2):
        return False
    return any(equal(step, 0) and not holds(length <= 1) for length, step in zip(size, stride, strict=True))


def _is_interleaved(size: Sequence[Any], stride: Sequence[Any], is_so: Callable[[Any], bool] = holds) -> bool:
    if holds(math.prod(size) < 2):
        return False
    if any(map(is_symbolic, (*size, *stride))):
        return not is_dense(size, stride) and _may_interleave(size, stride, is_so)
    reach = 0
    for step, length in sorted(zip(stride, size, strict=True)):
        if length > 1 and step != 0:
            if step <= reach:
                return True
            reach += (length - 1) * step
    return False


def _may_interleave(size: Sequence[Any], stride: Sequence[Any], is_so: Callable[[Any], bool]) -> bool:
    """Whether a stride is neither known to exceed the inner extent, nor found to by `is_so`."""
    reach: Any = 0
    length: Any = 1
    below: Any = 1  # this many strides `below` exceed `reach`
    for dim in reversed(dims_by_stride(stride)):
        step = stride[dim]
        if not (equal(step, 0) or holds(size[dim] <= 1)):
            divides = equal(
                step % below, 0
            )  # divisibility is more often known than a comparison of terms with several symbols
            if not (holds(step > reach) or (divides and holds(step // below >= length)) or is_so(step > reach)):
                return True
            reach, length, below = reach + (size[dim] - 1) * step, size[dim], step
    return False


def storage_id(tensor: torch.Tensor) -> int:
    """Return a number equal for strided tensors of one storage alone."""
    return int(tensor.untyped_storage()._cdata)


def share_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    return storage_id(first) == storage_id(second)


def has_stride(tensor: torch.Tensor, stride: Sequence[Any]) -> bool:
    """Whether the tensor is strided and has these strides along dimensions of size above 1."""
    if tensor.layout is not torch.strided:
        return False
    found = tensor.stride()
    if any(map(is_symbolic, (*found, *stride))):
        triples = zip(found, stride, tensor.shape, strict=True)
        return all(equal(have, want) or equal(length, 1) for have, want, length in triples)
    return found == tuple(stride) or all(
        have == want or length == 1 for have, want, length in zip(found, stride, tensor.shape, strict=True)
    )


def restride(tensor: torch.Tensor, stride: Sequence[Any]) -> torch.Tensor:
    """Return the elements with these strides: the tensor itself where it has them, else a copy."""
    if has_stride(tensor, stride):
        return tensor
    return copy_with_strides(tensor if tensor.layout is torch.strided else tensor.to_dense(), stride)


def copy_with_strides(tensor: torch.Tensor, stride: Sequence[Any]) -> torch.Tensor:
    """Return a copy with these strides."""
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def may_overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors span common bytes of one storage; tensors that are not strided count as without memory."""
    if first.layout is not torch.strided or second.layout is not torch.strided or not share_storage(first, second):
        return False
    (start, end), (other_start, other_end) = span(first), span(second)
    return not (holds(start >= other_end) or holds(other_start >= end))


def is_read_late(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether an elementwise operation may read elements of `read` after it has written them.

    Both then share memory, at different positions. For symbolic sizes guards state that it does not happen; it is
    assumed to for unbacked ones, and for large tensors of irregular layouts.
    """
    if not may_overlap(written, read):
        return False
    if written.element_size() != read.element_size():
        return True
    one, other = _layout(written), _layout(read)
    if as_expressions(one) == as_expressions(other) or _are_disjoint(one, other, holds):
        return False
    numbers, others = _numbers(one), _numbers(other)
    if any(map(is_unbacked, (*numbers, *others))):
        return True
    if _are_disjoint(one, other, holds_at_present):
        return False
    here, there = _at_present(one), _at_present(other)
    if here == there:
        return not all(holds_at_present(mine == its) for mine, its in zip(numbers, others, strict=True))
    if _is_read_late(here, there):
        return True
    for number in (*numbers, *others):
        int(number)
    return False


#: (sizes, strides, storage offset) of a tensor.
_Layout = tuple[tuple[Any, ...], tuple[Any, ...], Any]


def _layout(tensor: torch.Tensor) -> _Layout:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _numbers(layout: _Layout) -> tuple[Any, ...]:
    return (*layout[0], *layout[1], layout[2])


def _at_present(layout: _Layout) -> _Layout:
    size, stride, offset = layout
    return tuple(map(hint_or_guess, size)), tuple(map(hint_or_guess, stride)), hint_or_guess(offset)


def _are_disjoint(one: _Layout, other: _Layout, is_so: Callable[[Any], bool]) -> bool:
    """Whether `is_so` finds that no element of one lies on an element of the other.

    One is empty, or ends before the other begins, or does so within each row of some length (`x[:, :n]` and `x[:,
    n:]`).
    """
    if any(is_so(length == 0) for length in (*one[0], *other[0])):
        return True
    between = other[2] - one[2]
    if is_so(between >= _extent(one)) or is_so(-between >= _extent(other)):
        return True
    for row in {as_expressions(step): step for step in (*one[1], *other[1])}.values():
        if equal(row, 0):
            continue
        first, second = _extent(one, row), _extent(other, row)
        for rows in {0, -1, hint_or_guess(between) // max(hint_or_guess(row), 1)}:
            beside = between - rows * row
            conditions = (beside >= first, beside + second <= row)
            if all(map(hint_or_guess, conditions)) and all(map(is_so, conditions)):
                return True
    return False


def _extent(layout: _Layout, row: Any = None) -> Any:
    """Return the distance from the first element to the last, plus 1; within one row if `row` is given.

    A dimension whose stride is a multiple of the row does not count: its elements have one offset in different rows.
    """
    size, stride, _ = layout
    pairs = zip(size, stride, strict=True)
    return 1 + sum((length - 1) * step for length, step in pairs if row is None or not equal(step % row, 0))


def _is_read_late(one: _Layout, other: _Layout) -> bool:
    """`is_read_late` of known layouts with elements of one width."""
    if max(math.prod(one[0]), math.prod(other[0])) > MOST_ELEMENTS:
        return True
    with no_dispatch():
        here, there = _element_offsets(*one), _element_offsets(*other)
        if not bool(torch.isin(there, here).any()):
            return False
        try:
            beside = torch.broadcast_to(there, here.shape)
        except RuntimeError:
            return True  # not a pointwise operation
        return bool(((beside != here) & torch.isin(beside, here)).any())


#: Elements up to which offsets are compared one by one: some milliseconds.
MOST_ELEMENTS = 1 << 20


def _element_offsets(size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """Return the storage offset of each element of a layout."""
    offsets = torch.tensor(offset, device="cpu")
    for length, step in zip(size, stride, strict=True):
        offsets = offsets[..., None] + step * torch.arange(length, device="cpu")
    return offsets


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of strided tensors with their strides and shared memory; without history."""
    storages: dict[int, torch.UntypedStorage] = {}
    copied = []
    for tensor in tensors:
        storage, key = tensor.untyped_storage(), storage_id(tensor)
        if key not in storages:
            storages[key] = storage.clone()  # type: ignore[no-untyped-call]
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copied.append(made.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride()))
    return copied


def sizes_below(tensor: torch.Tensor) -> torch.Size:
    """Return the sizes of a tensor; of functorch's wrapper around one with a history, those of the tensor in it."""
    while unstable.is_gradtrackingtensor(tensor):
        tensor = unstable.get_unwrapped(tensor)
    return tensor.shape

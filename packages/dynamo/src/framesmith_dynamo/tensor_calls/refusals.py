"""Errors that eager operations raise for reasons a fake tensor's meta kernel does not look at.

Memory that overlaps what is written, and numbers that the dtype cannot hold. The tests here are no narrower than
eager's: where they hold, the operation runs as plain Python and decides for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from framesmith_dynamo.tensor_calls.run_time_errors import name_of


def _at(places: slice, names: str) -> dict[str, slice]:
    return dict.fromkeys(names.split(), places)


#: Operations that put numbers into elements of their arguments' or result's dtype -> where among the arguments.
NUMBER_TAKERS: Final = {
    **_at(slice(0, None), "arange"),
    **_at(slice(0, 2), "linspace logspace"),
    **_at(
        slice(1, None),
        """
        add add_ sub sub_ subtract subtract_ rsub addcdiv addcdiv_ addcmul addcmul_ addmm addmm_ addmv addmv_ addr addr_
        addbmm addbmm_ baddbmm baddbmm_ celu celu_ clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ clip clip_ elu
        elu_ fill fill_ fill_diagonal_ full full_like hardshrink hardtanh hardtanh_ leaky_relu leaky_relu_ lerp lerp_
        masked_fill masked_fill_ nan_to_num nan_to_num_ softplus softshrink threshold threshold_ where isin
        """,
    ),
    **_at(slice(2, None), "new_full constant_pad_nd setitem __setitem__"),
    **_at(slice(3, None), "pad index_add index_add_ index_fill index_fill_ scatter scatter_"),
}

#: Keyword arguments that are sizes and places, not elements.
NO_ELEMENTS: Final = frozenset(["size", "dim", "pad", "n", "steps", "base"])

#: Write elements in an order of their own, so that even reading exactly what is written is refused.
NO_OVERLAP_AT_ALL = frozenset({
    "__setitem__", "addbmm_", "addmm_", "addmv_", "baddbmm_", "cumprod_", "cumsum_", "index_add_", "index_copy_",
    "index_fill_", "index_put_", "index_reduce_", "masked_fill_", "masked_scatter_", "put_", "scatter_",
    "scatter_add_", "scatter_reduce_", "setitem",
})  # fmt: skip


def why_overflows(tensors: Sequence[torch.Tensor], numbers: Iterable[float], result: Any) -> str | None:
    """Why eager may refuse a call that fakes took, because of its numbers, or None.

    `tensors`: fakes among the arguments; `numbers`: see `elements_in`; `result`: what the call gave on fakes.
    """
    held = [*tensors, *([result] if isinstance(result, torch.Tensor) else [])]
    for dtype in dict.fromkeys(tensor.dtype for tensor in held):
        for number in numbers:
            if not fits(number, dtype):
                return f"{number} does not fit into {dtype}"
    return None


def why_not_written(written: Sequence[torch.Tensor], others: Sequence[torch.Tensor], *, exactly: bool) -> str | None:
    """Why eager may refuse to write into the `written` ones, given the `others` it reads, or None.

    `exactly`: even reading just what is written is refused.
    """
    for tensor in written:
        if overlaps_itself(tensor):
            return "elements of the written-to tensor share memory"
        if any(other is not tensor and overlaps(tensor, other, exactly=exactly) for other in others):
            return "the written-to tensor shares memory with another argument"
    return None


def why_outside(target: Any, result: Any) -> str | None:
    """Why eager refuses to make such a view, or None."""
    if name_of(target) not in ("as_strided", "as_strided_") or not isinstance(result, torch.Tensor):
        return None
    last = sum((size - 1) * stride for size, stride in zip(result.shape, result.stride(), strict=True))
    needed = (int(result.storage_offset()) + last + 1) * result.element_size()
    return "the view goes beyond its storage" if result.numel() and needed > result.untyped_storage().nbytes() else None


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements surely lie at one place."""
    if tensor.layout is not torch.strided or tensor.numel() < 2:
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def overlaps(first: torch.Tensor, second: torch.Tensor, *, exactly: bool) -> bool:
    """Whether the memory of two tensors overlaps without being the same; with `exactly`, also when it is the same.

    Tensors with gaps are never refused by eager, which does not look closely at them; here neither.
    """
    if first.layout is not torch.strided or second.layout is not torch.strided:
        return False
    if first.numel() == 0 or second.numel() == 0:
        return False
    if first.untyped_storage()._cdata != second.untyped_storage()._cdata:
        return False
    if not (is_dense(first) and is_dense(second)):
        return False
    mine, other = span(first), span(second)
    if mine == other:
        return exactly or first.stride() != second.stride()
    return mine[0] < other[1] and other[0] < mine[1]


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory, each its own place."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes a dense tensor covers, as offsets into its storage."""
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + tensor.numel() * tensor.element_size()


def elements_in(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[float]:
    """The Python numbers among graph arguments that become elements of tensors."""
    places = NUMBER_TAKERS.get(name_of(target))
    if places is None:
        return []
    named = [arg for name, arg in kwargs.items() if name not in NO_ELEMENTS]
    return [arg for arg in (*args[places], *named) if isinstance(arg, int | float) and not isinstance(arg, bool)]


def fits(number: float, dtype: torch.dtype) -> bool:
    """Whether elements of the dtype can hold the number without overflow (rounding is no overflow)."""
    if dtype is torch.bool or dtype.is_complex:
        return True
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    info = torch.iinfo(dtype)
    return math.isfinite(number) and min(info.min, -info.max) <= number <= info.max  # unsigned types take -1 for max

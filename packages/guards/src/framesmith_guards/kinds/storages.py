"""Whether tensors share memory: a common storage, or bytes in common."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch

from framesmith_guards.torch_adapter import unstable

_untyped_storage: Final[Any] = torch.Tensor.untyped_storage


def storage_id(tensor: Any) -> int:
    """Return the address of a tensor's storage object; raises for tensors without one."""
    with unstable.DisableTorchFunction():
        return int(_untyped_storage(tensor)._cdata)


def extent(tensor: Any) -> tuple[int, int]:
    """Return the addresses of the first byte of the elements and of the one past the last; equal if empty."""
    with unstable.DisableTorchFunction():
        start, sizes = tensor.data_ptr(), tensor.size()
        if start == 0 or 0 in sizes:  # elements of meta tensors have no address
            return (0, 0)
        last = sum((size - 1) * stride for size, stride in zip(sizes, tensor.stride(), strict=True))
        return (start, start + (last + 1) * tensor.element_size())


def same_storage(value: object, _expected: object, other: object) -> bool:
    return storage_id(value) == storage_id(other)


def no_overlap(value: object, *others: object) -> bool:
    """Whether the byte range of a strided tensor's elements is disjoint from those of the others.

    Interleaved views of one storage overlap. The others may overlap each other.
    """
    start, end = extent(value)
    return not any(_meet(start, end, *extent(other)) for other in others)


def all_disjoint(*values: object) -> bool:
    """Whether the byte ranges of strided tensors' elements are pairwise disjoint."""
    spans = sorted(span for span in map(extent, values) if span[0] != span[1])
    return all(first[1] <= second[0] for first, second in pairwise(spans))


def _meet(start: int, end: int, other_start: int, other_end: int) -> bool:
    return start < other_end and other_start < end and start != end and other_start != other_end

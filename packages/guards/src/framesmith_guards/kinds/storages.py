"""Whether tensors share memory: a common storage, or bytes in common."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch

from framesmith_guards.torch_adapter import unstable

_untyped_storage: Final[Any] = torch.Tensor.untyped_storage


def storage_id(tensor: Any) -> int:
    """The address of a tensor's storage object; an exception for what has none."""
    with unstable.DisableTorchFunction():
        return int(_untyped_storage(tensor)._cdata)


def extent(tensor: Any) -> tuple[int, int]:
    """The addresses of the first byte of a strided tensor's elements and of the one past the last; equal if empty."""
    with unstable.DisableTorchFunction():
        start, sizes = tensor.data_ptr(), tensor.size()
        if start == 0 or 0 in sizes:  # elements of meta tensors are nowhere
            return (0, 0)
        last = sum((size - 1) * stride for size, stride in zip(sizes, tensor.stride(), strict=True))
        return (start, start + (last + 1) * tensor.element_size())


def same_storage(value: object, _expected: object, other: object) -> bool:
    """Whether two tensors are views of one storage."""
    return storage_id(value) == storage_id(other)


def no_overlap(value: object, *others: object) -> bool:
    """Whether the bytes that a strided tensor's elements span meet those of none of the others.

    A span counts as a whole: interleaved views of one storage overlap. The others may overlap each other.
    """
    start, end = extent(value)
    return not any(_meet(start, end, *extent(other)) for other in others)


def all_apart(*values: object) -> bool:
    """Whether the bytes that strided tensors' elements span are all apart, each from every other's."""
    spans = sorted(span for span in map(extent, values) if span[0] != span[1])
    return all(first[1] <= second[0] for first, second in pairwise(spans))


def _meet(start: int, end: int, other_start: int, other_end: int) -> bool:
    return start < other_end and other_start < end and start != end and other_start != other_end

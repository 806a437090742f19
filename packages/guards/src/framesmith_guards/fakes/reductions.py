"""Reductions over lengths that only a call knows, of which torch's rules in Python make up their minds beforehand.

Its softmax takes the largest of each row, which asserts that rows have elements: the operator takes those without, too.
Its norm of all elements asks whether there is one: of all dimensions, named, it asks what may be left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from framesmith_guards.fakes.symbols import hint_of
from framesmith_guards.torch_adapter import FakeTensorMode, aten

_SOFTMAX: Final = (aten._softmax.default, aten._log_softmax.default)


def softmax(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """The softmax of a tensor of unknown lengths: contiguous, as the operator's. None for others."""
    if op not in _SOFTMAX or not _has_unknown_length(args[0]):
        return None
    tensor, _, in_float32 = args
    if not tensor.is_floating_point() or (in_float32 and tensor.dtype is not torch.float16):
        return None  # which torch's rule refuses
    with mode:
        return torch.empty(tensor.shape, dtype=torch.float32 if in_float32 else tensor.dtype, device=tensor.device)


def with_dimensions(op: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a norm of all elements with all dimensions by number; those of others as they are."""
    if op is not aten.linalg_vector_norm.default or not _has_unknown_length(args[0]):
        return args
    tensor, order, dims, *rest = args if len(args) > 2 else (*args, *(2, None)[len(args) - 1 :])
    return args if dims else (tensor, order, list(range(tensor.dim())), *rest)


def _has_unknown_length(tensor: torch.Tensor) -> bool:
    return None in map(hint_of, tensor.shape)

"""Operators of forward derivatives: zeros with the memory layout of a primal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from framesmith_guards.torch_adapter import aten


def rule_for(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], torch.Tensor] | None:
    """Return the function that makes the zeros of a tangent, inside the mode; None for other operators.

    Torch's tensors without memory do not get along with fakes. Its kernel for zeros in memory like a primal's reads
    sizes as numbers, and what fakes remember of it is not the size of the memory.
    """
    if op is aten._efficientzerotensor.default:
        return partial(aten.zeros.default, *args, **kwargs)
    if op is not aten._new_zeros_with_same_feature_meta.default:
        return None
    return partial(_zeros, args[0], args[1], kwargs.get("self_num_batch_dims", 0))


def _zeros(tangent: torch.Tensor, primal: torch.Tensor, batch_dims: int) -> torch.Tensor:
    """Return zeros of the tangent's dtype, for each of its batches in memory like that of the primal."""
    batches = tangent.shape[:batch_dims]
    length: Any = primal.untyped_storage().nbytes() // primal.element_size()
    memory = tangent.new_zeros((math.prod(batches) * length,))
    strides = [math.prod(batches[at + 1 :]) * length for at in range(batch_dims)]
    return memory.as_strided((*batches, *primal.shape), (*strides, *primal.stride()), primal.storage_offset())

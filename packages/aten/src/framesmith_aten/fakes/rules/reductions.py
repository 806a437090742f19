"""Reductions over unbacked sizes, where torch's rules in Python check conditions that the operators do not.

Its softmax takes the maximum of each row, which asserts that rows have elements: the operator takes empty ones, too.
Its norm of all elements asks whether there is one: with all dimensions named, it checks only what is unknown. Its
logsumexp, cummax and cummin ask whether there are elements, and give the same shapes either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from framesmith_aten.symbolic import has_unbacked_length
from framesmith_guards.torch_adapter import FakeTensorMode, aten


def reduced(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> Any:
    """Return the result on a tensor of unbacked sizes; None for other operators, and where torch's rule serves.

    That serves dtypes unknown here. The kernel refuses missing dimensions.
    """
    rule = _RULES.get(op)
    if rule is None or not has_unbacked_length(args[0]):
        return None
    with mode:
        return rule(*args)


def _softmax(tensor: torch.Tensor, dim: int, in_float32: bool) -> torch.Tensor | None:
    """Contiguous, as the operator's."""
    if not tensor.is_floating_point() or (in_float32 and tensor.dtype is not torch.float16):
        return None
    return torch.empty(tensor.shape, dtype=torch.float32 if in_float32 else tensor.dtype, device=tensor.device)


def _cumulative_extreme(tensor: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices, contiguous as the operator's."""
    shape, device = tensor.shape, tensor.device
    return torch.empty(shape, dtype=tensor.dtype, device=device), torch.empty(shape, dtype=torch.int64, device=device)


_RULES: Final[dict[Any, Callable[..., Any]]] = {
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten.logsumexp.default: lambda tensor, dims, keepdim=False: (
        torch.sum(tensor, tuple(dims), keepdim) if tensor.is_floating_point() else None
    ),
    aten.cummax.default: _cumulative_extreme,
    aten.cummin.default: _cumulative_extreme,
}


def with_dimensions(op: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of a norm of all elements with all dimensions named; other arguments unchanged."""
    if op is not aten.linalg_vector_norm.default or not has_unbacked_length(args[0]):
        return args
    tensor, order, dims, *rest = args if len(args) > 2 else (*args, *(2, None)[len(args) - 1 :])
    return args if dims else (tensor, order, list(range(tensor.dim())), *rest)

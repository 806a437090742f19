"""Reductions over unbacked lengths, where torch's rules in Python ask or assert what the operators do not.

Its softmax takes the largest of each row, which asserts that rows have elements: the operator takes those without, too.
Its norm of all elements asks whether there is one: of all dimensions, named, it asks what may be left open. Its
logsumexp, cummax and cummin ask whether there are elements at all, and give the same shapes either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from framesmith_aten.fakes.symbols import has_unbacked_length
from framesmith_guards.torch_adapter import FakeTensorMode, aten


def reduced(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> Any:
    """The result of such an operator on a tensor of unbacked lengths; None for others, and where torch's rule serves.

    It does for types other than these rules know. Dimensions that are not there are refused by the operator's kernel.
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


def _logsumexp(tensor: torch.Tensor, dims: Sequence[int], keepdim: bool = False) -> torch.Tensor | None:
    """Laid out as a sum over these dimensions."""
    return torch.sum(tensor, tuple(dims), keepdim) if tensor.is_floating_point() else None


def _cumulative_extreme(tensor: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices: contiguous, as the operator's."""
    shape, device = tensor.shape, tensor.device
    return torch.empty(shape, dtype=tensor.dtype, device=device), torch.empty(shape, dtype=torch.int64, device=device)


_RULES: Final[dict[Any, Callable[..., Any]]] = {
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten.logsumexp.default: _logsumexp,
    aten.cummax.default: _cumulative_extreme,
    aten.cummin.default: _cumulative_extreme,
}


def with_dimensions(op: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a norm of all elements with all dimensions by number; those of others as they are."""
    if op is not aten.linalg_vector_norm.default or not has_unbacked_length(args[0]):
        return args
    tensor, order, dims, *rest = args if len(args) > 2 else (*args, *(2, None)[len(args) - 1 :])
    return args if dims else (tensor, order, list(range(tensor.dim())), *rest)

"""Shapes and strides of results of a few operators for which torch's own rules are slow or wrong.

That of layer norm runs a reference decomposition on fakes. That of batch norm gives results the input's strides, where
CPU kernels return contiguous or channels-last memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from framesmith_aten.layouts import is_contiguous
from framesmith_aten.symbolic import all_equal, has_symbols
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import aten


def _layer_norm(
    input: torch.Tensor, normalized_shape: list[Any], weight: Any, bias: Any, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    plain = input.device.type == "cpu" and input.dtype in (torch.float32, torch.float64) and is_contiguous(input)
    kept = input.dim() - len(normalized_shape)
    same = all(param is None or param.dtype is input.dtype for param in (weight, bias))
    if not (plain and same and kept >= 0 and all_equal(input.shape[kept:], normalized_shape)):
        return None
    stat = [*input.shape[:kept], *([1] * len(normalized_shape))]
    return torch.empty_like(input), input.new_empty(stat), input.new_empty(stat)


def _has_contiguous_strides(tensor: torch.Tensor) -> bool:
    """Whether the strides are a contiguous tensor's, also along dimensions of size 1; or symbolic."""
    return has_symbols(tensor) or tensor.stride() == unstable.make_contiguous_strides_for(tensor.shape)


def _batch_norm(op: Any) -> Callable[..., Any]:
    """Contiguous results, or channels-last ones if the input's strides suggest that without being dense."""

    def rule(input: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...] | None:
        if input.device.type != "cpu" or _has_contiguous_strides(input):
            return None
        out, *others = op(input, *rest)
        format = torch.contiguous_format if input.is_contiguous() else unstable.suggest_memory_format(input)
        return torch.empty_like(out, memory_format=format), *others

    return rule


def _arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    """Length of a range of symbolic floats; torch's reference computes where no symbol can be."""
    if not any(isinstance(number, torch.SymFloat) for number in (start, end, step)):
        return None
    return torch.empty(math.ceil((end - start) / step), dtype=dtype, device=device)


def _fractional_max_pool3d_backward(grad: torch.Tensor, input: torch.Tensor, *rest: Any) -> torch.Tensor | None:
    """Torch has no rule, and runs the kernel where sizes are known."""
    return input.new_empty(input.shape) if has_symbols(input) or has_symbols(grad) else None


def _batch_norm_backward(grad: torch.Tensor, input: torch.Tensor, *rest: Any) -> tuple[Any, ...] | None:
    """On the CPU the gradient has the input's memory format, whatever that of the output's gradient."""
    if (
        input.device.type != "cpu"
        or has_symbols(input)
        or (_has_contiguous_strides(input) and _has_contiguous_strides(grad))
    ):
        return None
    dx, *others = aten.native_batch_norm_backward.default(grad, input, *rest)
    format = unstable.suggest_memory_format(input)
    if input.is_contiguous() and grad.is_contiguous() and unstable.suggest_memory_format(grad) == format:
        format = torch.contiguous_format
    return (None if dx is None else torch.empty_like(dx, memory_format=format)), *others


#: Operator -> rule, called under the fake mode; a rule declines with None.
SHAPE_RULES: dict[Any, Callable[..., Any]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.fractional_max_pool3d_backward.default: _fractional_max_pool3d_backward,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    **{
        op: _batch_norm(op)
        for op in (
            aten._native_batch_norm_legit_functional.default,
            aten._native_batch_norm_legit.no_stats,
            aten._native_batch_norm_legit_no_training.default,
        )
    },
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}

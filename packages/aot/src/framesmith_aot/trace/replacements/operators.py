"""Operators whose own trace would lose an update, a check, a layout or a symbol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_guards.torch_adapter import aten


def batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> torch.Tensor:
    """`torch.batch_norm` by the operators whose schemas declare the update of running statistics."""
    if input.numel() == 0:  # they refuse empty inputs
        scaled = (
            input.clone() if weight is None else input.clone() * weight[0]
        )  # eager mode does not save the input itself
        return scaled if bias is None else scaled + bias[0]
    # Eager mode gives torch's operator, whose schema declares no update, copies of lazy negatives.
    running_mean = None if running_mean is None else running_mean.resolve_neg()
    running_var = None if running_var is None else running_var.resolve_neg()
    stats = running_mean is not None and running_var is not None
    out: torch.Tensor
    if not training and stats:
        out = aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, running_mean, running_var, momentum, eps
        )[0]
    elif stats:
        out = aten._native_batch_norm_legit.default(
            input, weight, bias, running_mean, running_var, training, momentum, eps
        )[0]
    else:
        out = aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)[0]
    return out


def functional_batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    if training:
        F._verify_batch_size(list(input.size()))  # type: ignore[attr-defined]
    return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def tolist(tensor: torch.Tensor) -> Any:
    """`Tensor.tolist`, number by number for a traced tensor."""
    if not functional.is_functional(tensor):
        return tensor.tolist()
    return [tolist(part) for part in tensor.unbind()] if tensor.dim() else tensor.item()


def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`torch.one_hot` with its check as an operator: its own reads the data. A wrong class raises a RuntimeError."""
    if num_classes <= 0:  # torch counts the classes, or raises
        return torch.nn.functional.one_hot(tensor, num_classes)
    unstable.assert_async(((tensor >= 0) & (tensor < num_classes)).all(), "Class values must be below num_classes.")
    classes = torch.arange(num_classes, device=tensor.device)
    return (tensor.contiguous().unsqueeze(-1) == classes).to(torch.int64)


def bernoulli(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.bernoulli`; an `out` tensor is filled in its memory order."""
    out = kwargs.get("out")
    if out is None or out.shape != input.shape:
        drawn: torch.Tensor = aten.bernoulli(input, *args, **kwargs)  # also with a tensor of probabilities
        return drawn
    return out.bernoulli_(input, generator=kwargs.get("generator"))  # type: ignore[no-any-return]


def slice_scatter(
    input: torch.Tensor, src: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> torch.Tensor:
    """`torch.slice_scatter`, with a check that the slice has the length of `src`, which its fake kernel lacks."""
    part = aten.slice.Tensor(input, dim, start, end, step)
    if part.dim() == src.dim():
        unstable.check(part.shape[dim] == src.shape[dim])
    return torch.slice_scatter(input, src, dim, start, end, step)


def max_pool1d(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.max_pool1d`: without gradients its CPU kernel returns contiguous results that are no views."""
    out = torch.max_pool1d(input, *args, **kwargs)
    recorded = torch.is_grad_enabled() and input.requires_grad
    return out if recorded or not input.is_cpu else aten._unsafe_view(out.contiguous(), out.shape)


def functional_max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if return_indices:
        return F.max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, True)
    return max_pool1d(input, kernel_size, [] if stride is None else stride, padding, dilation, ceil_mode)


#: Whether torch has a kernel for an operator and a dispatch key.
_has_kernel: Callable[[str, str], bool] = unstable.dispatch_has_kernel_for_dispatch_key


def _not_half(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """`torch.rms_norm`, on CUDA by pointwise operators and a mean, in the dtype of eager mode's kernel.

    Torch's own implementation reads the sizes for that kernel from memory, which symbols do not have.
    """
    sizes = tuple(normalized_shape)
    if input.is_cuda and torch.is_autocast_enabled("cuda") and _has_kernel("aten::rms_norm", "AutocastCUDA"):
        # Autocast computes it in float32: since torch 2.13.
        input, weight = _not_half(input), None if weight is None else _not_half(weight)
    weight_fits = weight is None or (weight.dtype == input.dtype and tuple(weight.shape) == sizes)
    fits = 0 < len(sizes) <= input.dim() and tuple(input.shape[input.dim() - len(sizes) :]) == sizes
    if not (input.is_cuda and input.is_floating_point() and fits and weight_fits):
        return torch.rms_norm(input, normalized_shape, weight, eps)
    return normed_by_rms(input, len(sizes), weight, eps)


def normed_by_rms(input: torch.Tensor, count: int, weight: torch.Tensor | None, eps: float | None) -> torch.Tensor:
    """Return the RMS norm along the last `count` dimensions, rounded to the input's dtype once, at the end."""
    dense = input.contiguous(memory_format=unstable.suggest_memory_format(input))
    wide = dense.to(torch.promote_types(input.dtype, torch.float32))
    mean = wide.square().mean(tuple(range(-count, 0)), keepdim=True)
    normed = wide * torch.rsqrt(mean + (torch.finfo(wide.dtype).eps if eps is None else eps))
    return (normed if weight is None else normed * weight).to(input.dtype)


def through_one_node(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return views of the tensors; the call makes them by one autograd node, outside of those of the graph."""
    return tuple([one.view_as(one) for one in tensors])

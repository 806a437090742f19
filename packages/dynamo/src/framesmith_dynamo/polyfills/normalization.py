"""Normalisation that updates running statistics without declaring it, in operations that do declare it.

After `at::instance_norm` (aten/src/ATen/native/Normalization.cpp).
"""

from __future__ import annotations

import torch
from torch import Tensor

from framesmith_dynamo.torch_adapter import unstable


def instance_norm(
    input: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.instance_norm` in training, with running statistics: batch norm over (1, N * C, ...)."""
    unstable.verify_spatial_size(input.size())
    batch, channels = input.shape[:2]
    mean, var = running_mean.repeat(batch), running_var.repeat(batch)
    result = torch.batch_norm(
        input.contiguous().view(1, batch * channels, *input.shape[2:]),
        None if weight is None else weight.repeat(batch),
        None if bias is None else bias.repeat(batch),
        mean,
        var,
        True,
        momentum,
        eps,
        torch.backends.cudnn.enabled,
    )
    with torch.no_grad():
        running_mean.copy_(mean.view(batch, channels).mean(0, False))
        running_var.copy_(var.view(batch, channels).mean(0, False))
    return result.view(input.shape)

"""Dropout under functorch's transforms: torch's own kernel there reads sizes as numbers."""

from __future__ import annotations

from typing import Any

import torch

from framesmith_guards.torch_adapter import DispatchKey, aten

KEY = DispatchKey.FuncTorchDynamicLayerFrontMode


def under_transforms(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """`aten.dropout`, as the kernel that functorch has for it draws its mask: of a number that no transform batches."""
    if not (train and 0 < p < 1) or 0 in [size for size in input.shape if type(size) is int]:
        own: Any = aten.dropout.default._op_dk
        result: torch.Tensor = own(KEY, input, p, train)
        return result
    noise = torch.bernoulli(torch.empty((), dtype=input.dtype, device=input.device).expand(input.shape), 1 - p)
    return input * noise.div_(1 - p)

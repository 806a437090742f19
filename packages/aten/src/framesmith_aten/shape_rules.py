"""Result metadata of a few common operators, without torch's general machinery.

Torch's own rule for layer norm runs its reference decomposition on fake tensors outside their mode,
which makes torch import torch.distributed.tensor (a third of a second) the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _layer_norm(
    input: torch.Tensor, normalized_shape: list[Any], weight: Any, bias: Any, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    plain = input.device.type == "cpu" and input.dtype in (torch.float32, torch.float64) and input.is_contiguous()
    kept = input.dim() - len(normalized_shape)
    same = all(param is None or param.dtype is input.dtype for param in (weight, bias))
    if not (plain and same and list(input.shape[kept:]) == list(normalized_shape)):
        return None
    stat = [*input.shape[:kept], *([1] * len(normalized_shape))]
    return torch.empty_like(input), input.new_empty(stat), input.new_empty(stat)


#: Operator -> rule, called under the fake mode; a rule declines with None.
SHAPE_RULES: dict[Any, Callable[..., Any]] = {aten.native_layer_norm.default: _layer_norm}

"""Refuses calls whose functional variant would read the RNG stream in another order."""

from __future__ import annotations

from typing import Any

import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.layouts import is_dense
from framesmith_aten.symbolic import holds
from framesmith_guards.torch_adapter import aten

#: The id of a refused call.
RNG_ORDER = "rng-order"

#: From this size on kernels fill contiguous memory sixteen elements at a time, at least on the CPU.
FILLED_TOGETHER = 16


def check_order(op: Any, changed: torch.Tensor) -> None:
    """Refuse normal random numbers in memory with gaps. Raises TraceUnsupported.

    The functional variant fills dense memory, which is contiguous where this is not.
    """
    normal = op in (aten.normal_.default, aten.normal_functional.default)
    if normal and not holds(changed.numel() < FILLED_TOGETHER) and not is_dense(changed.shape, changed.stride()):
        what = f"normal_ on a tensor of strides {tuple(changed.stride())}"
        raise TraceUnsupported(RNG_ORDER, what, "in memory with gaps it draws its numbers in another way")

"""In which order random numbers fill memory: what the functional form of an operator would draw otherwise."""

from __future__ import annotations

from typing import Any

import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.layouts import is_dense
from framesmith_aten.symbolic import holds
from framesmith_guards.torch_adapter import aten

#: The id of what is refused.
RNG_ORDER = "rng-order"

#: From so many elements on contiguous memory is filled in another way, at least on CPU: sixteen at a time.
FILLED_TOGETHER = 16


def check_order(op: Any, changed: torch.Tensor) -> None:
    """Refuses to fill memory with gaps with normal numbers. Raises TraceUnsupported.

    The functional form fills dense memory, which is contiguous where this is not.
    """
    normal = op in (aten.normal_.default, aten.normal_functional.default)
    if normal and not holds(changed.numel() < FILLED_TOGETHER) and not is_dense(changed.shape, changed.stride()):
        what = f"normal_ on a tensor of strides {tuple(changed.stride())}"
        raise TraceUnsupported(RNG_ORDER, what, "in memory with gaps it draws its numbers in another way")

"""Padding by symbolic numbers, which may be none.

The operator then returns a copy with the input's layout. Torch's rule for symbolic sizes does not check, so that
exported graphs have no branch, and gives every result a contiguous layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from framesmith_aten.symbolic import hint_or_none
from framesmith_guards.torch_adapter import FakeTensorMode, aten, unstable


def padded(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """Return a tensor without padding, narrowed for negative pads; None for others, and where the layout is the same.

    Adds a guard on whether there is padding, not for unbacked pads.
    """
    if op is not aten.constant_pad_nd.default or unstable.is_contiguous_or_false(args[0]):
        return None
    tensor: torch.Tensor = args[0]
    pads = args[1]
    if len(pads) % 2 or len(pads) > 2 * tensor.dim() or None in map(hint_or_none, pads):
        return None
    if not all(pad <= 0 for pad in pads):
        return None
    with mode:
        for back, (front, behind) in enumerate(zip(pads[::2], pads[1::2], strict=True), 1):
            length = tensor.shape[-back] + front
            tensor = tensor.narrow(-back, -front, length).narrow(-back, 0, length + behind)
        return tensor.clone()

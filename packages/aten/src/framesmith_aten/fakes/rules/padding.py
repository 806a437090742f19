"""Padding by symbolic numbers, of which there may be nothing to pad.

The operator then gives a copy laid out as the tensor is. Torch's rule for symbolic sizes does not ask, so that what is
exported has no branch, and lays every result out anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from framesmith_aten.fakes.symbols import hint_of
from framesmith_guards.torch_adapter import FakeTensorMode, aten, unstable


def padded(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """A tensor with nothing to pad, cut where pads are negative; None for others, and where the layout is the same.

    Whether there is anything to pad becomes a condition. Of pads that only a call knows it is not asked.
    """
    if op is not aten.constant_pad_nd.default or unstable.is_contiguous_or_false(args[0]):
        return None
    tensor: torch.Tensor = args[0]
    pads = args[1]
    if len(pads) % 2 or len(pads) > 2 * tensor.dim() or None in map(hint_of, pads):
        return None
    if not all(pad <= 0 for pad in pads):
        return None
    with mode:
        for back, (front, behind) in enumerate(zip(pads[::2], pads[1::2], strict=True), 1):
            length = tensor.shape[-back] + front
            tensor = tensor.narrow(-back, -front, length).narrow(-back, 0, length + behind)
        return tensor.clone()

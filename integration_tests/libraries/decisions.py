"""Discontinuities of gradients: operations that decide by the sign or the order of numbers, and their margins.

A ReLU's input that rounding carries over zero changes gradients by far more than rounding does. It may happen in any
float32 run, and says nothing about the kernels: such steps are left out, judged by the float64 run and eager's alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
#: The points where the derivative of a function of one number jumps.
KINKS: dict[Any, tuple[float, ...]] = {
    aten.relu: (0.0,),
    aten.relu_: (0.0,),
    aten.leaky_relu: (0.0,),
    aten.leaky_relu_: (0.0,),
    aten._prelu_kernel: (0.0,),
    aten.abs: (0.0,),
    aten.hardtanh: (0.0, 6.0),
    aten.hardtanh_: (0.0, 6.0),
    aten.hardswish: (-3.0, 3.0),
    aten.hardswish_: (-3.0, 3.0),
    aten.hardsigmoid: (-3.0, 3.0),
    aten.hardsigmoid_: (-3.0, 3.0),
}
#: A decision counts as clear where it is further off than so many times eager's largest error in its channel.
CLEAR = 4


class Decisions(TorchDispatchMode):
    """Notes for each deciding operation how far its numbers are from deciding otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.margins: list[torch.Tensor] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = op.overloadpacket
        self.margins += [args[0].detach() - kink for kink in KINKS.get(packet, ())]
        if packet is aten.max_pool2d_with_indices:
            self.margins.append(lead(*args))
        return op(*args, **(kwargs or {}))


def lead(
    x: torch.Tensor, size: list[int], stride: list[int], padding: tuple[int, ...] = (0,), *_: object
) -> torch.Tensor:
    """Return the margin of the largest number of each window over the next; square windows, cut off at the edges."""
    before, step = padding[0], (stride or size)[0]
    padded = F.pad(x.detach(), (before, before + step, before, before + step), value=-torch.inf)
    windows = padded.unfold(2, size[0], step).unfold(3, size[0], step).flatten(4)
    first, second = windows.topk(2, dim=-1).values.unbind(-1)
    return torch.where(second.isfinite(), first - second, 1.0)


def all_clear(exact: Decisions, rounded: Decisions) -> bool:
    """Whether eager's rounding errors, several times as large, would change no decision of the float64 run."""
    return all(map(is_clear, exact.margins, rounded.margins))


def is_clear(exact: torch.Tensor, rounded: torch.Tensor) -> bool:
    """The same of one tensor; errors are taken channel by channel, as batch norm scales them."""
    error = (rounded - exact).abs()
    largest = error.amax([dim for dim in range(error.dim()) if dim != 1], keepdim=True)
    tied = (exact == 0) & (rounded == 0)  # zeros that dropout or a ReLU put there, in any run
    return bool(((exact.abs() > CLEAR * largest) | tied).all())

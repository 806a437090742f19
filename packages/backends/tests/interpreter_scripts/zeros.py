"""Zeros below 0 in kernels for GPUs, on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from graphs.tracing import trace

from framesmith_backends import CudaBackend

Tensor = torch.Tensor
ZEROS = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf])
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "negated": lambda x: -x,
    "negated and divided by": lambda x: 1 / -x.abs(),
    "taken from": lambda x: -0.0 - x,
    "times": lambda x: x * -0.0,
    "added": lambda x: x + -0.0,
    "chosen": lambda x: torch.where(x > 0, -0.0, x),
    "filled": lambda x: x.masked_fill(x > 0, -0.0),
    "padded": lambda x: F.pad(x * 2, (1, 2), value=-0.0),
    "made": lambda x: torch.full_like(x, -0.0),
}


def differing(found: Tensor, wanted: Tensor) -> int:
    """Return the number of elements that differ, or have another sign."""
    same = found.eq(wanted) & (found.signbit() == wanted.signbit())
    return int((~(same | (found.isnan() & wanted.isnan()))).sum())


def main() -> None:
    for name, function in PROGRAMS.items():
        for kind in TYPES:
            x = ZEROS.to(kind)
            (found,) = CudaBackend().compile(trace(function, [x]), [x])([x])
            assert not differing(found, function(x)), (name, kind, found)
            print("ok", name, kind)


if __name__ == "__main__":
    main()

"""Programs with scans, for kernels of GPUs: what they are fused with, and in how many kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sample_programs.samples import vjp

Tensor = torch.Tensor


@dataclass(frozen=True)
class Program:
    """`kernels` is in how many kernels it runs; the shapes are of its inputs, the first of which is `dtype`."""

    name: str
    function: Callable[..., Any]
    kernels: int
    shapes: tuple[tuple[int, ...], ...] = ((6, 45),)
    dtype: torch.dtype = torch.float32
    calls: int = 0

    def inputs(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(len(self.name))
        found = [torch.randn(shape, generator=generator) for shape in self.shapes]
        return [found[0].to(self.dtype), *found[1:]]


def nucleus(x: Tensor) -> Tensor:
    weights = x.softmax(-1)
    return torch.where(weights.cumsum(-1) - weights > 0.9, 0.0, weights)


def of_gaps(x: Tensor) -> Tensor:
    """Reads at other points than those scanned."""
    sums = x.cumsum(-1)
    return sums[:, 3:] - sums[:, :-3]


def back(x: Tensor) -> Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def lined_up(x: Tensor) -> Tensor:
    sums = x.cumsum(-1)
    return sums / sums.abs().amax(-1, keepdim=True)


def gradient_of_matmul(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """A matmul along rows and its gradient where no factor is 0. Releases of torch differ in how they compute it."""
    y = x * 0.1 + 1
    out = y.cumprod(-1)
    return out, (out * grad).flip(-1).cumsum(-1).flip(-1) / y * 0.1


def row_column(x: Tensor) -> Tensor:
    return x.cumsum(-1) + back(x)


BIG = ((6, 45), (6, 45))
PROGRAMS = (
    Program("rows", lambda x: x.cumsum(-1), 1),
    Program("columns", lambda x: x.cumsum(0), 1, ((45, 6),)),
    Program("wide columns", lambda x: x.cumsum(0), 1, ((20, 150),)),
    Program("one in the middle", lambda x: x.cumsum(1), 1, ((3, 21, 5),)),
    Program("of four", lambda x: x.cumsum(-2), 1, ((2, 3, 17, 4),)),
    Program("one line", lambda x: x.cumsum(0), 1, ((300,),)),
    Program("half", lambda x: x.cumsum(-1), 1, dtype=torch.bfloat16),
    Program("rounded before", lambda x: ((x * 8).round() / 8).cumsum(-1, dtype=torch.bfloat16), 1),
    Program("doubles of halves", lambda x: x.cumsum(-1, dtype=torch.float64), 1, dtype=torch.float16),
    Program("integers", lambda x: (x * 9).int().cumsum(-1), 1),
    Program("truths", lambda x: (x > 0).cumsum(-1) - 1, 1),
    Program("few bits", lambda x: (x * 9).int().cumsum(-1, dtype=torch.int8), 1),
    Program("cumulative products", lambda x: (x * 0.2 + 1).cumprod(-1), 1),
    Program("cumulative products down", lambda x: (x * 0.2 + 1).cumprod(0), 1),
    Program("logarithms", lambda x: (x * 5).logcumsumexp(-1), 1),
    Program("logarithms down", lambda x: (x * 5).logcumsumexp(0), 1),
    Program("largest", lambda x: tuple((x * 4).round().cummax(-1)), 1),
    Program("smallest down", lambda x: tuple((x * 4).round().cummin(0)), 1),
    Program("largest integers", lambda x: tuple((x * 4).int().cummax(1)), 1),
    Program("indices alone", lambda x: x.cummax(-1).indices * 2, 1),
    Program("back", back, 1),
    Program("back down", lambda x: x.flip(0).cumsum(0).flip(0), 1, ((45, 6),)),
    Program("back in the middle", lambda x: x.flip(1).cumprod(1).flip(1) * 2, 1, ((3, 21, 5),)),
    Program("half back", lambda x: back(x) * 2, 1, dtype=torch.bfloat16),
    Program("largest back", lambda x: x.flip(-1).cummax(-1).values.flip(-1), 1),
    Program("gradient", vjp(lambda x: (x * x).cumsum(-1), 1), 2, BIG),
    Program("gradient down", vjp(lambda x: x.cumsum(0).sin(), 1), 2, ((45, 6), (45, 6))),
    Program("matmul's gradient", gradient_of_matmul, 2, BIG),
    Program("before and behind", lambda x, y: x.exp().cumsum(-1) * y, 1, BIG),
    Program("behind columns", lambda x, y: (x.exp().cumsum(0) * y).bfloat16(), 1, BIG),
    Program("nucleus", nucleus, 1),
    Program("softmax", lambda x: x.softmax(-1).cumsum(-1) > 0.5, 1),
    Program("reduced", lambda x: x.cumsum(-1).sum(-1), 1),
    Program("reduced and kept", lambda x: (x.cumsum(-1), x.cumsum(-1).amax(-1)), 1),
    Program("reduced otherwise", lambda x: x.cumsum(-1).sum(0), 2),
    Program("lined up", lined_up, 1),
    Program("again", lambda x: x.cumsum(-1).cumsum(-1), 1),
    Program("again down", lambda x: x.cumsum(0).cumsum(0), 1),
    Program("otherwise", lambda x: x.cumsum(-1).cumsum(0), 2),
    Program("side by side", lambda x: (x.cumsum(-1), x.cumprod(-1), x.exp()), 1),
    Program("rows and columns", row_column, 2),
    Program("gaps", of_gaps, 2),
    Program("of a mean", lambda x: x.mean(-1).cumsum(0), 2),
    Program("of what is the same", lambda x: (x[:, :1] + x[:1, 0]).expand(6, 45).cumsum(-1), 1),
    Program("of ones", lambda x: torch.ones_like(x).cumsum(-1) * x, 1),
    Program("of numbers", lambda x: torch.arange(45).cumsum(0) * x, 2),
    Program("transposed", lambda x: x.t().cumsum(0), 1),
    Program("part", lambda x: x[1:, ::2].cumsum(-1), 1),
    Program("in other shapes", lambda x: x.view(6, 9, 5).cumsum(1).view(6, 45) + x, 1),
    Program("reshaped behind", lambda x: x.cumsum(-1).view(6, 9, 5).sum(2), 2),
    Program("joined", lambda x: torch.cat([torch.zeros(6, 1), x.cumsum(-1)], -1), 2),
    Program("of size one", lambda x: x[:, :1].cumsum(1) * 2, 1),
    Program("single", lambda x: x[0, 0].cumsum(0) * 2, 1),
    Program("single largest", lambda x: tuple(x[0, 0].cummax(0)), 1),
    Program("added to its input", lambda x: (x + x.cumsum(-1)).cumsum(-1) + x, 1),
    Program("long", lambda x: x.cumsum(-1), 1, ((9, 5000),)),
    Program("long back", back, 1, ((9, 5000),)),
    Program("long lined up", lined_up, 1, ((9, 5000),)),
    Program("long nucleus", nucleus, 1, ((9, 5000),)),
    Program("long columns", lambda x: x.cumsum(0), 1, ((5000, 9),)),
    Program("long columns back", lambda x: x.flip(0).cumsum(0).flip(0), 1, ((5000, 9),)),
    Program("few long lines", lambda x: x.cumsum(-1) * 2, 1, ((2, 40_000),), calls=1),
)  # fmt: skip

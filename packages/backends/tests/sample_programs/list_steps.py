"""Steps over lists of tensors, as graphs that write to their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from graphs.tracing import mutating
from torch import fx

Tensor = torch.Tensor
Shapes = Sequence[tuple[int, ...]]
#: Single, short, a whole block, several with a rest, and with two dimensions.
ODD: Shapes = [(7,), (1,), (1024,), (100003,), (33, 5), (), (2048, 3)]
EVEN: Shapes = [(64, 64)] * 3 + [(64,)] * 4 + [(1024,)]


@dataclass(frozen=True)
class Lists:
    """A step of one tensor of each of `count` lists: new values of those `written`. `launches` of what it takes."""

    name: str
    step: Callable[..., tuple[Tensor, ...]]
    count: int
    written: tuple[int, ...]
    shapes: Shapes
    launches: int
    dtype: torch.dtype = torch.float32

    def inputs(self) -> list[Tensor]:
        """The tensors of the first list, then of the others."""
        torch.manual_seed(0)
        return [torch.rand(shape).to(self.dtype) for _ in range(self.count) for shape in self.shapes]

    def graph(self) -> fx.GraphModule:
        many = len(self.shapes)

        def all_steps(*tensors: Tensor) -> list[Tensor]:
            steps = [self.step(*tensors[k::many]) for k in range(many)]
            return [value for values in zip(*steps, strict=True) for value in values]

        return mutating(all_steps, self.inputs(), [k * many + at for k in self.written for at in range(many)])


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
    return p - m / (v.sqrt() + 1e-8) * 1e-3, m, v


def adam_twice(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    p, m, v = adam(p, g, m, v)
    return adam(p, g, m, v)


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return adam(p * 0.999, g, m, v)


def momentum(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    m = m * 0.9 + (g + p * 0.01)
    return p - m * 0.01, m


def average(p: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    return (torch.lerp(m, p, 0.01),)


def wide(p: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """Computed in double precision."""
    return ((p.double() - g.double() * 0.1).to(p.dtype),)


LISTS = (
    Lists("adam", adam, 4, (0, 2, 3), ODD, 1),
    Lists("adam, even", adam, 4, (0, 2, 3), EVEN, 1),
    Lists("adam, half", adam, 4, (0, 2, 3), ODD, 1, torch.bfloat16),
    Lists("adam twice", adam_twice, 4, (0, 2, 3), ODD, 1),
    Lists("adamw", adamw, 4, (0, 2, 3), ODD, 1),
    Lists("momentum", momentum, 3, (0, 2), ODD, 1, torch.float64),
    Lists("average", average, 2, (1,), EVEN, 1),
    Lists("wide", wide, 2, (0,), EVEN, 1),
    Lists("an empty one, which is ATen's", momentum, 3, (0, 2), [(7,), (1,), (0,), (64, 3), (5,)], 2),
    Lists("many", momentum, 3, (0, 2), [(5,), (40,), (3, 3)] * 170, 3),
)


def clipped(*gradients: Tensor) -> list[Tensor]:
    """Gradients clipped by their norm, and the norm."""
    norm = torch.stack([(g * g).sum() for g in gradients]).sum().sqrt()
    scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    return [*(g * scale for g in gradients), norm]


def chained(*tensors: Tensor) -> list[Tensor]:
    """Each reads what the one before becomes: the same text, one after another."""
    found = [tensors[0] * 2 + 1]
    for tensor in tensors[1:]:
        found.append(tensor * 2 + found[-1].flip(0))
    return found

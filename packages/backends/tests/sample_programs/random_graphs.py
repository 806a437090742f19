"""Random functions of tensors, by seed: pointwise operations, views, broadcasts, reductions, matmuls."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor

UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.tanh, torch.sigmoid, lambda x: x.clamp(-9, 9).sin(), torch.abs, torch.neg, torch.relu,
    lambda x: x * 0.5 + 1, torch.erf,
    lambda x: torch.nn.functional.gelu(x), lambda x: x.clamp(-1, 1), lambda x: (x > 0).to(x.dtype) * x,
)  # fmt: skip
BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: torch.where(a > b, a, b * 2), torch.minimum,
)  # fmt: skip


def random_inputs(seed: int, sizes: Sequence[int]) -> list[Tensor]:
    """Return inputs for the functions of `random_program`, of three sizes."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [tuple(sizes), (sizes[0], 1, sizes[2]), (sizes[2],)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def random_program(seed: int, steps: int = 12) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """(a function, inputs for it); the same seed gives the same function."""
    rng = random.Random(seed)
    inputs = random_inputs(seed, [rng.choice([1, 2, 3, 4, 6, 8, 17, 33, 64]) for _ in range(3)])
    decisions = [rng.random() for _ in range(steps * 8)]

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        choices = iter(decisions)
        values = list(args)
        for _ in range(steps):
            values.append(_step(values, lambda n: min(int(next(choices) * n), n - 1)))
        keep = {len(values) - 1, *(int(d * len(values)) for d in decisions[:3])}
        return tuple(values[k] for k in sorted(keep) if k >= len(args))

    return function, inputs


def _step(values: list[Tensor], pick: Callable[[int], int]) -> Tensor:
    x = values[len(values) - 1 - pick(min(4, len(values)))]
    kind = pick(12)
    if kind < 3:
        return UNARY[pick(len(UNARY))](x)
    if kind < 6:
        y = values[pick(len(values))]
        return _binary(x, y, pick)
    if kind < 8:
        return _view(x, pick)
    if kind < 10:
        return _reduce(x, pick)
    if kind == 10:
        return torch.softmax(x, pick(x.dim())) if x.dim() else x.exp()
    return torch.cat([x, x * 2], pick(x.dim())) if 0 < x.numel() < 20000 and x.dim() else x + 1


def _binary(x: Tensor, y: Tensor, pick: Callable[[int], int]) -> Tensor:
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        y = y.flatten()[:1]
    result = BINARY[pick(len(BINARY))](x, y)
    return result if result.numel() < 50000 else x


def _view(x: Tensor, pick: Callable[[int], int]) -> Tensor:
    kind = pick(6)
    if x.dim() == 0 or kind == 0:
        return x.reshape(-1)
    dim = pick(x.dim())
    if kind == 1:
        return x.transpose(0, dim)
    if kind == 2:
        return x.unsqueeze(dim)
    if kind == 3:
        return x.narrow(dim, 0, max(1, x.shape[dim] // 2))
    if kind == 4:
        return x.flip(dim)
    return x.reshape(x.shape[0], -1) if x.dim() > 2 else x.unsqueeze(0).expand(2, *x.shape)


def _reduce(x: Tensor, pick: Callable[[int], int]) -> Tensor:
    kind, keep = pick(5), bool(pick(2))
    if x.dim() == 0:
        return x * 3
    dim = pick(x.dim())
    if kind == 0:
        return x.mean(dim, keep)
    if kind == 1:
        return x.amax(dim, keep)
    if kind == 2:
        return x - x.mean(dim, True)
    if kind == 3:
        return x / (x.abs().sum(dim, True) + 1)
    return x.sum() if pick(3) == 0 else x.var(dim, unbiased=False, keepdim=keep)

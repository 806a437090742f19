"""Optimizer steps over lists of tensors, in place, with gradients that stay the same; sampling of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmarks.kernel_cases.case import SINGLE, Case, Inputs, Make, Tensor, group
from benchmarks.suites.kernels.optimizers import SHAPES, Tensors, adam, adam_at_once, momentum, moving_average

Shapes = Sequence[tuple[int, ...]]

#: Of many layers of a few numbers each.
MANY: Shapes = [(32,), (16, 8)] * 250


def adamw(parameters: Tensors, gradients: Tensors, first: Tensors, second: Tensors) -> None:
    """Adam with decoupled weight decay."""
    for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
        p.mul_(1 - 1e-5)
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m, v.sqrt() + 1e-8, value=-1e-3)


def clip_by_norm(gradients: Tensors) -> Tensor:
    """Gradients cut to a norm that they keep afterwards."""
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(scale)
    return norm


def clip_at_once(gradients: Tensors) -> object:
    """The same by operators over all gradients."""
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))
    return norm


def lists(shapes: Shapes, count: int = 4) -> Make:
    """Lists of tensors of those shapes: numbers between 0 and 1."""
    return lambda dtype: tuple([torch.rand(shape).to(dtype) for shape in shapes] for _ in range(count))


def top_p(scores: Tensor, noise: Tensor) -> Tensor:
    """Samples among the likeliest tokens that make up 0.9; the exponential noise is given."""
    probabilities, order = torch.softmax(scores / 0.8, -1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities
    kept = probabilities.masked_fill(before > 0.9, 0.0)
    return order.gather(-1, (kept / noise).argmax(-1, keepdim=True))


def top_k(scores: Tensor, noise: Tensor) -> Tensor:
    """Samples among the 50 likeliest tokens."""
    border = scores.topk(50, -1).values[:, -1:]
    kept = torch.softmax(scores.masked_fill(scores < border, -torch.inf), -1)
    return (kept / noise).argmax(-1)


def scores_and_noise(dtype: torch.dtype) -> Inputs:
    return (torch.randn(16, 8192) * 3).to(dtype), torch.empty(16, 8192).exponential_().clamp(min=1e-3).to(dtype)


#: Steps, and how many lists each takes.
STEPS: dict[str, tuple[Callable[..., object], int]] = {
    "adam": (adam, 4),
    "adam_at_once": (adam_at_once, 4),
    "adamw": (adamw, 4),
    "momentum": (momentum, 4),
    "moving_average": (moving_average, 4),
    "clip_by_norm": (clip_by_norm, 1),
    "clip_at_once": (clip_at_once, 1),
}

UPDATES = (
    *group(
        "updates",
        *(Case(name, fn, lists(SHAPES, count)) for name, (fn, count) in STEPS.items()),
    ),
    *group(
        "sampling",
        Case("top_p", top_p, scores_and_noise, SINGLE),
        Case("top_k", top_k, scores_and_noise, SINGLE),
    ),
    *group(
        "many_updates",
        *(Case(f"{name}_many", fn, lists(MANY, count)) for name, (fn, count) in STEPS.items()),
    ),
)

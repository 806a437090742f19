"""Programs on a GPU beside eager mode: results, mutated arguments, gradients and the random state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from benchmarks.harness.agreement import check

DEVICE = "cuda"
R = torch.randn


@dataclass(frozen=True)
class Program:
    """A function, what makes its arguments on the CPU, and how far terms that cancel may be off."""

    function: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    scale: float = 10.0


def moved(value: Any) -> Any:
    """On the GPU, with the same strides where they matter."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(DEVICE).requires_grad_(value.requires_grad)


def outcome(function: Callable[..., Any], values: Sequence[Any]) -> list[torch.Tensor]:
    """Results, arguments afterwards, gradients and the GPU's random state."""
    torch.manual_seed(0)
    values = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in values]
    results = [x for x in tree_leaves(function(*values)) if isinstance(x, torch.Tensor) and x.layout is torch.strided]
    found = [*results, *(x.detach().clone() for x in values if isinstance(x, torch.Tensor))]
    leaves = [x for x in values if isinstance(x, torch.Tensor) and x.requires_grad]
    roots = [x for x in results if x.grad_fn is not None and not x.is_complex()]
    if leaves and roots:
        # Strides of gradients are not compared: eager mode gives views of what is larger.
        tangents = [torch.linspace(-1, 2, x.numel(), device=x.device).reshape(x.shape).to(x.dtype) for x in roots]
        grads = torch.autograd.grad(roots, leaves, tangents, allow_unused=True)
        found += [x.contiguous() for x in grads if x is not None]
    return [x.detach() for x in found] + [torch.cuda.get_rng_state()]


def laid_out(found: list[torch.Tensor]) -> list[Any]:
    return [(x.dtype, tuple(x.shape), x.stride() if x.numel() and x.dim() else (), x.device.type) for x in found]


def wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def compare(function: Callable[..., Any], compiled: Callable[..., Any], values: Sequence[Any], scale: float) -> None:
    """The same as eager; where eager is off from the same in float64, that will do."""
    expected = outcome(function, values)
    given = outcome(compiled, values)
    assert laid_out(given) == laid_out(expected)
    assert torch.equal(given[-1], expected[-1]), "the random state differs"
    check(given[:-1], expected[:-1], lambda: outcome(function, [wide(v) for v in values])[:-1], scale)


def pictured(x: torch.Tensor, *weights: torch.Tensor) -> Any:
    """Convolutions that may have their channels last, and what stands between and behind them."""
    a, b, groups, up, scale, shift = weights
    y = F.batch_norm(F.conv2d(x, a, padding=1), None, None, scale, shift, training=True).relu()
    y = F.conv2d(y, b, padding=1) + y
    small = F.max_pool2d(F.conv2d(y, groups, padding=1, groups=4), 2)
    wide = F.conv_transpose2d(small, up, stride=2, padding=1)
    return torch.cat([wide, F.interpolate(small, scale_factor=2.0)], 1), y, small.mean((2, 3)), wide.flatten(1)

"""Random layers, some of which are equal: a nested compile region is called on each of them."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor


class Layer(nn.Module):
    """A layer with what a trace may read: numbers, names, submodules, buffers, hooks, its mode."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale: Any = 2
        self.names = ["sin", "tanh"]
        self.inner: Any = nn.Sequential(nn.Linear(size, size), nn.LayerNorm(size))
        self.register_buffer("shift", torch.linspace(-1, 1, size))

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor, by: float = 1.0) -> Tensor:
        made = self.inner(x) * self.scale + self.shift * by
        for name in self.names:
            made = getattr(torch, name)(made)
        return made + x if self.training else made


def _of_other_scale(layer: Layer) -> None:
    layer.scale = 0.5


def _of_other_names(layer: Layer) -> None:
    layer.names = ["cos"]


def _in_eval_mode(layer: Layer) -> None:
    layer.eval()


def _frozen(layer: Layer) -> None:
    layer.requires_grad_(False)


def _with_a_hook(layer: Layer) -> None:
    layer.inner[0].register_forward_hook(lambda module, args, result: result * 2)


def _with_a_tied_bias(layer: Layer) -> None:
    layer.inner[0].bias = layer.inner[1].bias


def _of_another_class(layer: Layer) -> None:
    layer.inner = nn.Tanh()


def _with_a_trained_shift(layer: Layer) -> None:
    layer.shift.requires_grad_()


CHANGES = [
    _of_other_scale, _of_other_names, _in_eval_mode, _frozen, _with_a_hook, _with_a_tied_bias, _of_another_class,
    _with_a_trained_shift,
]  # fmt: skip


def random_layers(seed: int, size: int) -> nn.ModuleList:
    """Return up to five layers; the parameters are drawn by torch."""
    draw = random.Random(seed)
    layers = [Layer(size) for _ in range(draw.randint(2, 5))]
    for layer in layers:
        if draw.random() < 0.3:
            draw.choice(CHANGES)(layer)
    if draw.random() < 0.2:
        layers.append(layers[0])
    if draw.random() < 0.2:
        layers[-1].inner = layers[0].inner
    return nn.ModuleList(layers)

"""The programs that several benchmarks and the demo measure: small, deterministic, built on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The architecture page's pointwise chain."""
    return torch.nn.functional.gelu(x * y + 1).sin() * torch.sigmoid(y)


def gelu_layer_norm(x: torch.Tensor) -> torch.Tensor:
    """A pointwise producer and a row reduction."""
    return torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), (x.shape[-1],))


def softmax_rows(x: torch.Tensor) -> torch.Tensor:
    """Three passes over each row."""
    return torch.softmax(x * 0.125, dim=-1)


def mse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A full reduction after a pointwise chain."""
    return ((x - y) ** 2).mean()


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As little work as a graph can do: what is measured is the call."""
    return x + y


class DigitsNet(nn.Module):
    """The demo's convolutional network for 8x8 digits: logits of shape (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class DeepBlock(nn.Module):
    """A residual layer, 32 nodes of a joint graph."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def deep_model(layers: int) -> nn.Module:
    """So many residual layers, of rows of 32 numbers: what compiling a long graph costs, not running it."""
    return nn.Sequential(*[DeepBlock(32) for _ in range(layers)])


def small_bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A 4-layer BERT of width 256 with random weights, in eval mode, and a batch of 4 x 128 tokens."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=1000
    )
    tokens = torch.randint(0, 1000, (4, 128))
    return BertModel(config).eval(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def training_step(
    model: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, x: torch.Tensor, target: torch.Tensor
) -> Callable[[], Any]:
    """One optimisation step on a fixed batch, as a callable without arguments."""

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step

"""Models without convolutions or transformers: perceptrons, recurrences, experts, graphs, recommenders, flows."""

from __future__ import annotations

import functools
import itertools

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor]]


def perceptron(widths: tuple[int, ...], batch: int) -> Built:
    """Linear layers with GELU between them."""
    layers: list[nn.Module] = []
    for inside, out in itertools.pairwise(widths):
        layers += [nn.Linear(inside, out), nn.GELU()]
    return nn.Sequential(*layers[:-1]), {"input": torch.randn(batch, widths[0])}


def linears(depth: int) -> Built:
    """Small Linear layers and nothing else."""
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth))), {"input": torch.randn(2, 4)}


wide_mlp = functools.partial(perceptron, (1024, 4096, 4096, 1024), 64)
small_mlp = functools.partial(perceptron, (64, 128, 128, 10), 32)


class Recurrent(nn.Module):
    """A recurrent operator's outputs, without its state."""

    def __init__(self, operator: nn.Module) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(x)[0]


def recurrent(kind: type[nn.RNNBase]) -> Built:
    """Two layers over 64 steps."""
    return Recurrent(kind(64, 128, num_layers=2, batch_first=True)), {"x": torch.randn(16, 64, 64)}


lstm, gru = functools.partial(recurrent, nn.LSTM), functools.partial(recurrent, nn.GRU)


class Loop(nn.Module):
    """A cell called in a Python loop."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, seen = None, []
        for item in x.unbind(1):
            state = self.cell(item, state)
            seen.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(seen, 1)


def loop(kind: type[nn.RNNCellBase]) -> Built:
    """Twenty steps of a cell."""
    return Loop(kind(32, 64)), {"x": torch.randn(16, 20, 32)}


lstm_loop, gru_loop = functools.partial(loop, nn.LSTMCell), functools.partial(loop, nn.GRUCell)


class Experts(nn.Module):
    """Each row goes to its best expert; which rows go where depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(128, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return out


def experts() -> Built:
    """Four experts over 256 rows."""
    return Experts(), {"x": torch.randn(256, 128)}


class StateSpace(nn.Module):
    """Mamba-like: a short causal convolution and a selective scan in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(64, 256), nn.Linear(128, 64)
        self.conv, self.select = nn.Conv1d(128, 128, 4, padding=3, groups=128), nn.Linear(128, 128 + 16)
        self.decay = nn.Parameter(torch.rand(128, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        signal, gate = self.inside(x).chunk(2, -1)
        signal = F.silu(self.conv(signal.transpose(1, 2))[..., :length]).transpose(1, 2)
        step, read, write = self.select(signal).split([128, 8, 8], -1)
        step = F.softplus(step)
        state, seen = x.new_zeros(x.shape[0], 128, 8), []
        for t in range(length):
            kept = torch.exp(-step[:, t, :, None] * self.decay)
            state = state * kept + (step[:, t] * signal[:, t])[..., None] * write[:, t, None]
            seen.append((state * read[:, t, None]).sum(-1))
        return self.out(torch.stack(seen, 1) * F.silu(gate))


def state_space() -> Built:
    """32 steps."""
    return StateSpace(), {"x": torch.randn(4, 32, 64)}


class Graph(nn.Module):
    """Messages along edges, summed at their ends, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.ModuleList(nn.Linear(128, 64) for _ in range(3))
        self.update = nn.ModuleList(nn.GRUCell(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for message, update in zip(self.message, self.update, strict=True):
            sent = F.relu(message(torch.cat([x[edges[0]], x[edges[1]]], -1)))
            x = update(torch.zeros_like(x).index_add(0, edges[1], sent), x)
        return x


def graph() -> Built:
    """500 nodes, 3000 edges."""
    return Graph(), {"x": torch.randn(500, 64), "edges": torch.randint(0, 500, (2, 3000))}


class Recommender(nn.Module):
    """Embedding bags and dense features, all pairs of their dot products, a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(1000, 32, mode="sum") for _ in range(8))
        self.dense, self.top = nn.Linear(13, 32), nn.Sequential(nn.Linear(32 + 81, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, dense: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        below = F.relu(self.dense(dense))
        every = torch.stack([below, *(bag(items[i]) for i, bag in enumerate(self.bags))], 1)
        return self.top(torch.cat([below, (every @ every.transpose(1, 2)).flatten(1)], 1))


def recommender() -> Built:
    """128 rows of eight features with five items each."""
    return Recommender(), {"dense": torch.randn(128, 13), "items": torch.randint(0, 1000, (8, 128, 5))}


class Flow(nn.Module):
    """Affine couplings with the logarithm of their determinant: the negative log likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 64)) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        total = torch.zeros_like(x[:, 0])
        for net in self.nets:
            scale, shift = net(left).chunk(2, -1)
            right, total = right * torch.tanh(scale).exp() + shift, total + torch.tanh(scale).sum(-1)
            left, right = right, left
        return (0.5 * (left.square() + right.square()).sum(-1) - total).mean()


def flow() -> Built:
    """256 rows of 64."""
    return Flow(), {"x": torch.randn(256, 64)}


class Variational(nn.Module):
    """A variational autoencoder's loss, with noise given as an input."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.code = nn.Linear(784, 256), nn.Linear(256, 64)
        self.up = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        mean, spread = self.code(F.relu(self.down(x))).chunk(2, -1)
        made = self.up(mean + noise * torch.exp(0.5 * spread))
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(made, x, reduction="sum") / x.shape[0] + divergence


def variational() -> Built:
    """Digits of 784 pixels."""
    return Variational(), {"x": torch.rand(128, 784), "noise": torch.randn(128, 32)}


autoencoder = functools.partial(perceptron, (784, 256, 64, 256, 784), 128)

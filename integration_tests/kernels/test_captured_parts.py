"""Programs captured in parts, by a stand-in for CPU tensors: results, gradients, random numbers, mutated inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith_backends import reporting
from integration_tests.harness.captures import Capture

WIDTH = 6


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    framesmith.reset()
    reporting.log_once.cache_clear()
    yield
    framesmith.reset()


def layers(x: torch.Tensor, w: torch.Tensor, count: int = 4) -> torch.Tensor:
    for _ in range(count):
        x = F.layer_norm(F.gelu(x @ w) + x, (WIDTH,))
    return x


def read(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = layers(x, w)
    return layers(y * y.abs().mean().item(), w)


def chosen(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = layers(x, w)
    rows = y[x[:, 0] > 0]
    return layers(y + rows.sum(0), w), rows, y


def counted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """An unbacked number of rows, and sizes of the batch on both sides of it."""
    y = layers(x, w) / x.shape[0]
    count = (x > 0).sum().item()
    return layers(y.reshape(-1, WIDTH).repeat(2, 1) + count, w).view(2, x.shape[0], WIDTH)


def drawn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.dropout(layers(x, w), 0.3, True)
    y = y + (y > 0).float().mean().item()
    return F.dropout(layers(y, w), 0.3, True)


def changed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = layers(x, w)
    x.mul_(y.abs().mean().item())
    return layers(x + y, w)


def inputs(step: int, rows: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(step)
    return [
        torch.randn(rows, WIDTH, generator=made),
        torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)),
    ]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "changing"])
@pytest.mark.parametrize("function", [read, chosen, counted, drawn, changed])
def test_programs_are_the_same(function: Callable[..., Any], dynamic: bool | None) -> None:
    backend = Capture()
    compiled = framesmith.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    _, w = inputs(0, 5)
    held: list[Any] = []
    for step in range(16):
        x, _ = inputs(step, 5 + step % 2 if dynamic else 5)
        mine = x.clone()
        torch.manual_seed(step)
        expected = function(x, w)
        torch.manual_seed(step)
        held.append((compiled(mine, w), expected, mine, x))
        for found, right, *both in held:
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)
        del held[:-3]
    assert backend.parts and backend.made
    assert all(captured.counts.replayed >= 8 for captured in backend.made), [one.counts for one in backend.made]


class Scaled(nn.Module):
    """A number that is read in the middle, as forward and as backward passes see it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)) for _ in range(2))
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.first:
            x = F.gelu(layer(x)) + x
        x = F.dropout(self.norm(x / (x.detach().abs().mean().item() + 1)), 0.2, self.training)
        for layer in self.second:
            x = F.gelu(layer(x)) + x
        return x


def trained(wrap: Callable[[nn.Module], Callable[..., Any]]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    module = Scaled()
    optimizer, call, seen = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), wrap(module), []
    torch.manual_seed(1)
    for step in range(12):
        optimizer.zero_grad()
        loss = call(inputs(step, 5)[0]).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().clone())
    return [*seen, *(value.detach().clone() for value in module.state_dict().values())]


def test_training_is_the_same() -> None:
    backend = Capture()
    found = trained(lambda module: framesmith.compile(module, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, trained(lambda module: module), rtol=2e-4, atol=2e-5)
    assert len(backend.parts) == 2 and len(backend.made) >= 4
    assert all(captured.counts.replayed >= 3 for captured in backend.made), [one.counts for one in backend.made]

"""Training as papers do it, where results, their gradients and grad modes matter: ten steps equal eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import framesmith

Compile = Callable[[Any], Any]


def small_network(features: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, features),
    )  # fmt: skip


def images(step: int) -> torch.Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(step))


class CamNetwork(nn.Module):
    """Gives its last activations beside the scores, as Grad-CAM wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        activations = self.features(x)
        return self.head(activations.mean((2, 3))), activations


def grad_cam(compile: Compile) -> list[Any]:
    """Weights of activations by `retain_grad`, by a hook and by `torch.autograd.grad`, while the network learns."""
    network = CamNetwork()
    run, seen = compile(network), []
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for step in range(10):
        scores, activations = run(images(step))
        hooked: list[torch.Tensor] = []
        activations.retain_grad()
        activations.register_hook(hooked.append)
        (asked,) = torch.autograd.grad(scores.max(1).values.sum(), activations, retain_graph=True)
        optimizer.zero_grad()
        scores[:, 1].sum().backward()
        weights = activations.grad.mean((2, 3), keepdim=True)
        seen += [asked, *hooked, F.relu((weights * activations).sum(1)).detach()]
        optimizer.step()
    return seen


class Moco(nn.Module):
    """Momentum contrast: keys without gradients, a queue, and a logged scalar that breaks the graph."""

    queue: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = small_network(), small_network()
        self.key.load_state_dict(self.query.state_dict())
        self.register_buffer("queue", F.normalize(torch.randn(4, 8), dim=0))
        self.pointer, self.log = 0, [0.0]

    @torch.no_grad()
    def keys(self, x: torch.Tensor) -> torch.Tensor:
        for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1
        keys = F.normalize(self.key(x), dim=1)
        self.log.append(round(keys.norm().item(), 3))
        return keys

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        q = F.normalize(self.query(x), dim=1)
        k = self.keys(y)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1) / 0.2
        with torch.no_grad():
            self.queue[:, self.pointer : self.pointer + 4] = k.t()
            self.pointer = (self.pointer + 4) % 8
        return F.cross_entropy(logits, torch.zeros(4, dtype=torch.long))


def moco(compile: Compile) -> list[Any]:
    model = Moco()
    run, seen = compile(model), []
    optimizer = torch.optim.SGD(model.query.parameters(), 0.1, momentum=0.9)
    for step in range(10):
        loss = run(images(step), images(step + 100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return [*seen, model.log, *model.state_dict().values()]


class Quantizer(nn.Module):
    """VQ-VAE's: nearest codes, straight-through gradients, a codebook that follows by moving averages."""

    sizes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(6, 4))
        self.register_buffer("sizes", torch.ones(6))
        self.used: list[int] = []

    def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            nearest = torch.cdist(z, self.codes).argmin(1)
            self.sizes.mul_(0.9).add_(F.one_hot(nearest, 6).sum(0), alpha=0.1)
            self.used.append(int(nearest.unique().numel()))
        q = self.codes[nearest]
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss


def vq_vae(compile: Compile) -> list[Any]:
    encoder, quantizer, decoder = nn.Linear(8, 4), Quantizer(), nn.Linear(4, 8)
    parts = nn.ModuleList([encoder, quantizer, decoder])

    @compile
    def losses(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, commitment = quantizer(torch.tanh(encoder(x)))
        return F.mse_loss(decoder(q), x), commitment

    optimizer, seen = torch.optim.Adam(parts.parameters(), 0.01), []
    for step in range(10):
        reconstruction, commitment = losses(torch.randn(5, 8, generator=torch.Generator().manual_seed(step)))
        optimizer.zero_grad()
        (reconstruction + commitment).backward()
        optimizer.step()
        seen += [reconstruction.item(), commitment.item()]
    return [*seen, quantizer.used, *parts.state_dict().values()]


def dino(compile: Compile) -> list[Any]:
    """A teacher that is a moving average of the student, centred and sharpened."""
    student = small_network()
    teacher = copy.deepcopy(student).requires_grad_(False)
    center = torch.zeros(1, 4)
    run, guide = compile(student), compile(teacher)

    @compile
    def loss_of(given: torch.Tensor, wanted: torch.Tensor, center: torch.Tensor) -> torch.Tensor:
        wanted = F.softmax((wanted - center) / 0.04, dim=-1).detach()
        found: torch.Tensor = -(wanted * F.log_softmax(given / 0.1, dim=-1)).sum(-1).mean()
        return found

    @compile
    @torch.no_grad()
    def follow(momentum: float) -> None:
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.data.mul_(momentum).add_(fast.detach().data, alpha=1 - momentum)

    optimizer, seen = torch.optim.AdamW(student.parameters(), 0.01), []
    for step in range(10):
        with torch.no_grad():
            wanted = guide(images(step))
        loss = loss_of(run(images(step + 50)), wanted, center)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        follow(0.9)
        center = center * 0.9 + wanted.mean(0, keepdim=True) * 0.1
        seen.append(loss.item())
    return [*seen, center, *student.state_dict().values(), *teacher.state_dict().values()]


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.allclose(one, two, rtol=1e-3, atol=1e-4)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == pytest.approx(two, rel=1e-3, abs=1e-4))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", [grad_cam, moco, vq_vae, dino])
def test_ten_steps(recipe: Callable[[Compile], list[Any]]) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # Adam makes much of the rounding errors of a gradient that is zero
    try:
        torch.manual_seed(0)
        wanted = recipe(lambda target: target)
        torch.manual_seed(0)
        assert same(recipe(framesmith.compile), wanted)
    finally:
        torch.set_default_dtype(before)

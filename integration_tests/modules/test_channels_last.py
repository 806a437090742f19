"""Training steps of random convolutional networks, channels last: results and gradients as in eager mode.

Every step is smooth: where rounding carries a ReLU's input over zero, eager's own gradients jump.
"""

from __future__ import annotations

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith_backends import pipeline
from integration_tests.harness.sweeps import LONG

SEEDS = range(400 if LONG else 24)
#: Layer of a network -> how often it is drawn.
PARTS = {
    "convolution": 5, "transposed": 1, "depthwise": 1, "norm": 1, "residual": 2, "joined": 1, "part": 1, "average": 1,
    "adaptive": 1, "nearest": 1, "linear": 1, "padded": 1,
}  # fmt: skip


class Network(nn.Module):
    """Some parts in a row; results from the middle are returned, too."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.kinds = rng.choices([*PARTS], [*PARTS.values()], k=rng.randrange(2, 7))
        self.channels = channels = rng.choice([1, 3, 8])
        self.parts = nn.ModuleList()
        for kind in self.kinds:
            out = rng.choice([1, 8, 16]) if kind in ("convolution", "transposed") else channels
            self.parts.append(_part(rng, kind, channels, out))
            channels = {"joined": 2 * channels, "part": (channels + 1) // 2}.get(kind, out)
        self.head = nn.Linear(channels, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen = []
        for kind, part in zip(self.kinds, self.parts, strict=True):
            x = _run(kind, part, x)
            if kind in ("residual", "joined"):
                seen.append(x * 2 if kind == "joined" else x.mean(1))
        return self.head(x.mean((2, 3))), x, *seen


def _part(rng: random.Random, kind: str, channels: int, out: int) -> nn.Module:
    if kind == "convolution":
        stride = rng.choice([1, 1, 2])
        return nn.Conv2d(channels, out, rng.choice([1, 3]), stride, 1, rng.choice([1, 2]), bias=rng.random() < 0.5)
    if kind == "transposed":
        return nn.ConvTranspose2d(channels, out, 3, rng.choice([1, 2]), 1)
    if kind in ("depthwise", "residual", "joined"):
        return nn.Conv2d(channels, channels, 3, padding=1, groups=channels if kind == "depthwise" else 1)
    return nn.BatchNorm2d(channels) if kind == "norm" else nn.Identity()


def _run(kind: str, part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    large = x.shape[-1] > 40
    if kind == "residual":
        return part(x).tanh() + x  # type: ignore[no-any-return]
    if kind == "joined":
        return torch.cat([F.silu(part(x)), x], 1)
    if kind == "part":
        return x[:, : (x.shape[1] + 1) // 2]
    if kind == "average":
        return F.avg_pool2d(x, 2, ceil_mode=True)
    if kind == "adaptive":
        return F.adaptive_avg_pool2d(x, (7, 5))
    if kind in ("nearest", "linear"):
        mode = "bilinear" if kind == "linear" else "nearest"
        return x.sigmoid() if large else F.interpolate(x, scale_factor=2.0, mode=mode)
    return F.pad(x, (1, 0, 2, 1)) if kind == "padded" else F.silu(part(x))


def _step(module: nn.Module, run: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
    x = x.clone().requires_grad_()
    results = run(x)
    (results[0].square().sum() + sum(one.mean() for one in results[1:])).backward()
    named = {f"result {at}": one.detach() for at, one in enumerate(results)}
    named |= {name: value.grad for name, value in module.named_parameters()}
    return named | {"input": x.grad} | {name: value.clone() for name, value in module.named_buffers()}


@pytest.fixture(scope="module")
def laid_out() -> list[bool]:
    """Whether the graph of each step was converted to channels-last."""
    return []


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", SEEDS)
def test_steps_are_as_in_eager_mode(seed: int, laid_out: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    eager = Network(rng)
    twin = copy.deepcopy(eager)
    x = torch.randn(rng.choice([1, 2, 3]), eager.channels, *rng.choice([(16, 16), (24, 17)]))
    asked = pipeline.with_channels_last

    def noted(*args: object) -> object:
        found = asked(*args)  # type: ignore[arg-type]
        laid_out.append(found is not None)
        return found

    monkeypatch.setattr("framesmith_backends.pipeline.with_channels_last", noted)
    framesmith.reset()
    compiled = framesmith.compile(twin, strict=True)
    for _ in range(2):
        eager.zero_grad(), twin.zero_grad()
        wanted, found = _step(eager, eager, x), _step(twin, compiled, x)
        for name, value in wanted.items():
            mine = found[name]
            assert mine is not None and value is not None
            assert mine.stride() == value.stride(), name
            room = 1e-3 * max(float(value.abs().max()), 0.1)
            torch.testing.assert_close(mine, value, rtol=0, atol=room, msg=lambda text, name=name: f"{name}: {text}")


def test_some_were_channels_last(laid_out: list[bool]) -> None:
    """Of the steps that ran in this process."""
    assert sum(laid_out) >= len(laid_out) // 5 and (len(laid_out) < 10 or not all(laid_out))


def test_batches_of_gradients() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 16, 3), nn.SiLU(), nn.Conv2d(16, 16, 3), nn.SiLU(), nn.Conv2d(16, 1, 3))
    x, parameters = torch.randn(2, 1, 20, 20), [*module.parameters()]
    grads = []
    for run in (module, framesmith.compile(module, strict=True)):
        result = run(x)
        batch = torch.arange(3.0).view(3, 1, 1, 1, 1).expand(3, *result.shape)
        grads.append(torch.autograd.grad(result, parameters, batch, is_grads_batched=True))
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("training", [False, True])
def test_beside_unbacked_lengths(training):
    """A selection of images is no image, and its unbacked length cannot be compared to theirs."""
    weight = torch.randn(8, 2, 3, 3, requires_grad=training)

    def function(x):
        images = F.conv2d(F.conv2d(x, weight, padding=1)[:, :2], weight, padding=1)
        return images[images > 0] * 2

    compiled = framesmith.compile(function, strict=True, fullgraph=True)
    for _ in range(2):
        x = torch.randn(2, 2, 24, 24)
        torch.testing.assert_close(compiled(x), function(x))


def test_masks_beside_indices():
    mask, positions = torch.tensor([True, False, True]), torch.tensor([0, 1])
    compiled = framesmith.compile(lambda x: x[mask, positions] + 1, strict=True)
    x = torch.randn(3, 4)
    assert torch.equal(compiled(x), x[mask, positions] + 1)

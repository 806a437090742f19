"""Steps that a check fails in: what is changed by then, and what later steps give, is as in eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith

pytestmark = pytest.mark.usefixtures("fresh")
Tensor = torch.Tensor


def _model() -> nn.Module:
    layers = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4)
    return nn.Sequential(nn.Embedding(5, 6), *layers)


@dataclass
class Training:
    """Two models, their optimizers, and counts of classes."""

    optimizer: Callable[..., torch.optim.Optimizer]
    net: nn.Module = field(default_factory=_model)
    counts: Tensor = field(default_factory=lambda: torch.zeros(4))

    def __post_init__(self) -> None:
        self.other = copy.deepcopy(self.net)
        self.optimizers = [self.optimizer(one.parameters()) for one in (self.net, self.other)]

    def update(self, net: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def state(self) -> list[Tensor | None]:
        models = [self.net, self.other]
        grads = [p.grad for one in models for p in one.parameters()]
        kept = [v for o in self.optimizers for one in o.state.values() for v in one.values()]
        found = [*(v for one in models for v in one.state_dict().values()), *grads, *kept, self.counts]
        return [value.clone() if isinstance(value, Tensor) else value for value in found]


def one_update(t: Training, inputs: Tensor, targets: Tensor) -> Tensor:
    return t.update(t.net, t.optimizers[0], inputs, targets)


def an_update_before_the_check(t: Training, inputs: Tensor, targets: Tensor) -> Tensor:
    loss = t.update(t.net, t.optimizers[0], inputs % 5, targets % 4)
    return loss + t.update(t.other, t.optimizers[1], inputs, targets)


def counts_behind(t: Training, inputs: Tensor, targets: Tensor) -> Tensor:
    loss = one_update(t, inputs, targets)
    t.counts.index_add_(0, targets, torch.ones(len(targets)))
    return loss


def averages(t: Training, inputs: Tensor, targets: Tensor) -> Tensor:
    loss = one_update(t, inputs, targets)
    with torch.no_grad():
        for mean, value in zip(t.other.parameters(), t.net.parameters(), strict=True):
            mean.lerp_(value, 0.1)
    return loss


def accumulated(t: Training, inputs: Tensor, targets: Tensor) -> Tensor:
    t.optimizers[0].zero_grad()
    for some, classes in zip(inputs.chunk(2), targets.chunk(2), strict=True):
        (F.cross_entropy(t.net(some), classes) / 2).backward()
    t.optimizers[0].step()
    return t.counts.sum()


STEPS = (one_update, an_update_before_the_check, counts_behind, averages, accumulated)
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": lambda params: torch.optim.SGD(params, 0.1, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, 1e-2, foreach=True),
}


def outcomes(step: Callable[..., Tensor], optimizer: str, wrap: Callable[..., Any]) -> list[Any]:
    torch.manual_seed(0)
    training = Training(OPTIMIZERS[optimizer])
    call = wrap(lambda inputs, targets: step(training, inputs, targets))
    found: list[Any] = []
    for at in range(6):
        inputs, targets = torch.randint(0, 5, (8,)), torch.randint(0, 4, (8,))
        targets[5] = 4 if at == 2 else targets[5]
        inputs[6] = 7 if at == 4 else inputs[6]
        try:
            found.append(call(inputs, targets))
        except IndexError as error:
            found.append(str(error))
        found += training.state()
    return [*found, torch.rand(1)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("step", STEPS)
def test_steps_that_fail_midway(step: Callable[..., Tensor], optimizer: str) -> None:
    found, expected = (outcomes(step, optimizer, wrap) for wrap in (framesmith.compile, lambda function: function))
    assert [type(one) for one in found] == [type(one) for one in expected]
    assert sum(isinstance(one, str) for one in expected) == 2
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        else:
            assert one == other

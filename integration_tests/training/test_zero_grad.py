"""`zero_grad` inside compiled functions, against eager mode: with gradients and without, one entry for both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import framesmith


class World:
    """A model, of which one parameter takes no part, and an optimizer of it."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.model.register_parameter("idle", nn.Parameter(torch.ones(2)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, **settings)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()


class Zealous(torch.optim.SGD):
    """An optimizer with a say of its own."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.zeroed = getattr(self, "zeroed", 0) + 1


def training(world: World, x: torch.Tensor) -> torch.Tensor:
    world.optimizer.zero_grad()
    loss = world.loss(x)
    loss.backward()
    world.optimizer.step()
    return loss.detach()


def of_module(world: World, x: torch.Tensor) -> torch.Tensor:
    world.model.zero_grad()
    loss = world.loss(x)
    loss.backward()
    return loss.detach()


def behind(world: World, x: torch.Tensor) -> torch.Tensor:
    loss = world.loss(x)
    loss.backward()
    world.optimizer.step()
    world.optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def to_zeros(world: World, x: torch.Tensor) -> torch.Tensor:
    world.optimizer.zero_grad(False)
    loss = world.loss(x)
    loss.backward()
    return loss.detach()


def of_module_to_zeros(world: World, x: torch.Tensor) -> torch.Tensor:
    world.model.zero_grad(set_to_none=False)
    loss = world.loss(x)
    loss.backward()
    return loss.detach()


def looked_at(world: World, x: torch.Tensor) -> list[Any]:
    before = [p.grad is None for p in world.model.parameters()]
    world.optimizer.zero_grad()
    after = [p.grad is None for p in world.model.parameters()]
    loss = world.loss(x)
    loss.backward()
    return [before, after, loss.detach()]


def used_and_forgotten(world: World, x: torch.Tensor) -> torch.Tensor:
    world.loss(x).backward()
    total = sum((p.grad.square().sum() for p in world.model.parameters() if p.grad is not None), torch.zeros(()))
    world.model.zero_grad()
    return total


def twice(world: World, x: torch.Tensor) -> torch.Tensor:
    world.optimizer.zero_grad()
    world.model.zero_grad()
    world.optimizer.zero_grad(set_to_none=True)
    return world.loss(x).detach()


def frozen(world: World, x: torch.Tensor) -> torch.Tensor:
    world.model[0].requires_grad_(False)
    world.optimizer.zero_grad()
    return world.loss(x).detach()


def of_a_copy(world: World, x: torch.Tensor) -> torch.Tensor:
    world.optimizer.zero_grad()
    return x * 2


def refused(world: World, x: torch.Tensor) -> Any:
    try:
        world.optimizer.zero_grad(True, 1)  # type: ignore[call-arg]
    except TypeError as error:
        return len(str(error)), x + 1
    return None


def given_gradients(world: World, x: torch.Tensor) -> torch.Tensor:
    world.optimizer.zero_grad()
    for p in world.model.parameters():
        p.grad = torch.ones_like(p)
    world.optimizer.step()
    return x + 1


#: program -> whether one entry for each piece serves calls with gradients and without
PROGRAMS: dict[Callable[[World, torch.Tensor], Any], bool] = {
    training: False,  # the optimizer asks which gradients there are, and its own state
    of_module: True,
    behind: False,
    to_zeros: False,
    of_module_to_zeros: False,
    looked_at: False,
    used_and_forgotten: False,
    twice: True,
    frozen: True,
    of_a_copy: True,
    refused: True,
    given_gradients: True,
}


def ran(program: Callable[[World, torch.Tensor], Any], compile: Callable[..., Any], make: Callable[[], World]) -> Any:
    """Results, parameters and gradients of calls with gradients and without."""
    world, run, found = make(), compile(program), []
    for at in range(6):
        x = torch.linspace(-1, 1, 6).reshape(2, 3) * (at + 1)
        found.append(run(world, x))
        if at == 3:
            for p in world.model.parameters():
                p.grad = None
        parameters = [*world.model.parameters()]
        found.append(copy.deepcopy([[p.detach(), p.grad] for p in parameters]))
    return found


MAKES: dict[str, Callable[[], World]] = {
    "plain": World,
    "momentum": lambda: World(momentum=0.9),
    "many at once": lambda: World(foreach=True),
    "copied": lambda: copy.deepcopy(World()),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_are_eagers(program: Callable[[World, torch.Tensor], Any], make: str) -> None:
    framesmith.reset()
    wanted = ran(program, lambda fn: fn, MAKES[make])
    found = ran(program, lambda fn: framesmith.compile(fn, backend="eager", strict=True), MAKES[make])
    torch.testing.assert_close(found, wanted)
    if PROGRAMS[program] and make == "plain":
        assert framesmith.stats()["recompilations"] == 0


def test_a_say_of_its_own_is_heard() -> None:
    def make() -> World:
        world = World()
        world.optimizer = Zealous(world.model.parameters(), 0.1)
        return world

    framesmith.reset()
    worlds: list[World] = []

    def kept() -> World:
        worlds.append(make())
        return worlds[-1]

    wanted = ran(training, lambda fn: fn, kept)
    torch.testing.assert_close(ran(training, framesmith.compile, kept), wanted)
    assert [world.optimizer.zeroed for world in worlds] == [6, 6]  # type: ignore[attr-defined]

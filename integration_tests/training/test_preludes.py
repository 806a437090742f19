"""Graphs that begin with an optimizer's step and go on with what gradients flow through: two graphs, as eager computes.

Second derivatives, changes of parameters before the pass, and what the second part does to what the first has written.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
from framesmith_backends import CpuBackend


@torch.compiler.disable
def engine(loss: torch.Tensor, **options: Any) -> None:
    """A backward pass by autograd's engine: one inside of the graph leaves no part that gradients flow through."""
    loss.backward(**options)


@torch.compiler.disable
def slopes_of(*args: Any, **options: Any) -> Any:
    return torch.autograd.grad(*args, **options)


class World:
    """A judge with an optimizer, and a maker that the judge looks at."""

    def __init__(self, kind: str = "adam", width: int = 4) -> None:
        torch.manual_seed(0)
        self.judge = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.BatchNorm1d(width), nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 1)
        )
        self.judge.double()
        self.maker = nn.Linear(4, 4).double()
        self.average = copy.deepcopy(self.judge)
        makes: dict[str, Callable[..., torch.optim.Optimizer]] = {
            "adam": lambda ps: torch.optim.Adam(ps, 1e-2, eps=0.1),  # or it makes much of roundings
            "momentum": lambda ps: torch.optim.SGD(ps, 1e-2, momentum=0.9),
            "plain": lambda ps: torch.optim.SGD(ps, 1e-2),
        }
        self.optimizer = makes[kind](self.judge.parameters())

    def first(self, x: torch.Tensor) -> None:
        engine(self.judge(x).square().mean())

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def state_of(world: World) -> list[torch.Tensor]:
    modules = (world.judge, world.maker, world.average)
    state = [value for each in modules for value in (*each.parameters(), *each.buffers())]
    grads = [p.grad for each in modules for p in each.parameters() if p.grad is not None]
    own = [value for per in world.optimizer.state.values() for value in per.values() if isinstance(value, torch.Tensor)]
    return [value.detach().clone() for value in (*state, *grads, *own)]


def gan(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    loss = world.judge(world.maker(x)).mean()
    engine(loss)
    return loss.detach()


def second_derivatives(world: World, x: torch.Tensor) -> list[torch.Tensor]:
    world.first(x)
    world.update()
    y = world.judge(world.maker(x)).tanh().sum()
    slopes = slopes_of(y, [*world.maker.parameters(), world.judge[0].weight], create_graph=True)
    total = sum((slope.square().sum() for slope in slopes), y)
    engine(total)
    return [total.detach(), *[slope.detach() for slope in slopes]]


def twice(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    loss = world.judge(world.maker(x)).square().mean()
    engine(loss, retain_graph=True)
    engine(loss)
    return loss.detach()


def changed_before_the_pass(world: World, x: torch.Tensor) -> Any:
    world.first(x)
    world.update()
    loss = world.judge(world.maker(x)).square().mean()
    print(end="")
    with torch.no_grad():
        world.judge[3].weight.mul_(2)
    try:
        engine(loss)
    except RuntimeError as error:
        world.optimizer.zero_grad()  # some are there, of the layers that come before the error
        world.maker.zero_grad()
        return loss.detach(), "modified by an inplace operation" in str(error)
    return loss.detach(), False


def changed_by_data(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    loss = world.judge(world.maker(x)).square().mean()
    print(end="")
    world.judge[3].weight.data.mul_(2)
    engine(loss)
    return loss.detach()


def with_dropout(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    loss = nn.functional.dropout(world.judge(world.maker(x)), 0.5).sum()
    engine(loss)
    return torch.stack([loss.detach(), torch.rand(())])


def averaged(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    with torch.no_grad():
        for kept, now in zip(world.average.parameters(), world.judge.parameters(), strict=True):
            kept.lerp_(now, 0.1)
    world.update()
    loss = (world.judge(x) - world.average(world.maker(x))).square().mean()
    engine(loss)
    return loss.detach()


def reports_of_the_first(world: World, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    world.first(x)
    norm = nn.utils.clip_grad_norm_(world.judge.parameters(), 0.1)
    world.update()
    loss = world.judge(world.maker(x)).mean() * norm
    engine(loss)
    return loss.detach(), norm


def shows_a_parameter(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    rows = world.judge[3].weight[:2]
    loss = rows.square().sum() + world.judge(world.maker(x)).sum()
    engine(loss)
    return rows.detach().clone()


def writes_again(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    y = world.maker(x).sum() * 2
    with torch.no_grad():
        world.judge[0].bias.add_(1)
    loss = y + world.judge(world.maker(x)).sum()
    engine(loss)
    return loss.detach()


def may_fail_on_some_data(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    positions = (x[:, 0] * 100).long().clamp(0, 3)
    loss = nn.functional.embedding(positions, world.judge[0].weight).sum()
    engine(loss)
    return loss.detach()


def in_parts(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    one, other = world.judge[:4](world.maker(x)).chunk(2, dim=1)
    loss = (one * other).sum()
    engine(loss)
    return loss.detach()


def under_autocast(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    with torch.autocast("cpu"):
        loss = world.judge(world.maker(x)).mean()
    engine(loss)
    return loss.detach()


def all_under_autocast(world: World, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        world.first(x)
        world.update()
        loss = world.judge(world.maker(x)).mean()
    engine(loss)
    return loss.detach()


def without_reading(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    loss = world.maker(x).sum()
    engine(loss)
    return loss.detach()


def without_gradients(world: World, x: torch.Tensor) -> torch.Tensor:
    world.first(x)
    world.update()
    return world.judge(x).detach()


Program = Callable[[World, torch.Tensor], Any]
#: program -> whether it is compiled as two graphs, in its steady state
PROGRAMS: dict[Program, bool] = {
    gan: True,
    second_derivatives: True,
    twice: True,
    changed_before_the_pass: True,
    changed_by_data: True,
    with_dropout: True,
    averaged: True,
    reports_of_the_first: False,
    shows_a_parameter: True,
    writes_again: True,
    may_fail_on_some_data: False,
    in_parts: True,
    under_autocast: True,
    all_under_autocast: True,
    without_reading: False,
    without_gradients: True,
}


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    framesmith.reset()
    yield caplog
    framesmith.reset()


def ran(program: Program, compile: Callable[..., Any], kind: str, rows: tuple[int, ...]) -> list[Any]:
    world, run, found = World(kind), compile(program), []
    for at, count in enumerate(rows):
        x = torch.linspace(-1, 1, count * 4, dtype=torch.float64).reshape(count, 4) * (at + 1)
        torch.manual_seed(at)
        found += [run(world, x), state_of(world)]
    return found


def assert_like(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_like(one, other)
    elif isinstance(wanted, torch.Tensor):
        # Traced, Adam's corrections are float32, as the steps that it counts are.
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    else:
        assert found == wanted


@pytest.mark.sampled(24)
@pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")
@pytest.mark.parametrize(
    ("kind", "rows"),
    [("adam", (6,) * 6), ("momentum", (6,) * 6), ("plain", (6, 6, 5, 7))],
    ids=["adam", "momentum", "dynamic"],
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_steps(program: Program, kind: str, rows: tuple[int, ...], logged: pytest.LogCaptureFixture) -> None:
    wanted = ran(program, lambda fn: fn, kind, rows)
    logged.set_level(logging.INFO, "framesmith.aot")
    assert_like(ran(program, lambda fn: framesmith.compile(fn, strict=True), kind, rows), wanted)
    if kind == "adam":
        roles = [record.getMessage().split()[0] for record in logged.records if record.name == "framesmith.aot"]
        assert ("inference" in roles) is PROGRAMS[program], roles


class Fails(CpuBackend):
    """A backend one of whose graphs, of this role, fails at each call from the third on."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self.role, self.failures = role, 0

    def compile(self, gm: Any, inputs: Any, role: Any = "inference", *rest: Any, **more: Any) -> Any:
        run = super().compile(gm, inputs, role, *rest, **more)
        calls = 0

        def failing(args: list[Any]) -> Any:
            nonlocal calls
            calls += 1
            if calls > 2:
                self.failures += 1
                raise RuntimeError("planted")
            return run(args)

        return failing if role == self.role else run


@pytest.mark.sampled(9)
@pytest.mark.filterwarnings("ignore::framesmith.FramesmithWarning")
@pytest.mark.parametrize("role", ["inference", "forward"])
@pytest.mark.parametrize("program", [gan, second_derivatives, averaged])
def test_a_part_that_fails_runs_as_it_is_and_once(program: Program, role: str) -> None:
    backend = Fails(role)
    wanted = ran(program, lambda fn: fn, "adam", (6,) * 6)
    assert_like(ran(program, lambda fn: framesmith.compile(fn, backend=backend), "adam", (6,) * 6), wanted)
    assert backend.failures

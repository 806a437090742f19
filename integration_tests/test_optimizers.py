"""Optimizer steps and gradients read inside compiled functions, against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

#: Those whose step computes no Python number from a tensor: they are one graph.
WHOLE: dict[str, Make] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Nesterov": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "many at once": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, lr=0.1, centered=True, momentum=0.5),
    "RMSprop, many at once": lambda ps: torch.optim.RMSprop(ps, lr=0.1, foreach=True),
    "Adadelta": lambda ps: torch.optim.Adadelta(ps),
}
#: The others.
BROKEN: dict[str, Make] = {
    "Adam": lambda ps: torch.optim.Adam(ps),
    "AdamW, many at once": lambda ps: torch.optim.AdamW(ps, foreach=True, amsgrad=True),
    "Adagrad": lambda ps: torch.optim.Adagrad(ps),
    "Rprop": lambda ps: torch.optim.Rprop(ps),
}


def trained(make: Make, compiles: bool) -> list[Any]:
    """Parameters, momenta and losses of a few steps, some parameters without a gradient in some of them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = make(list(model.parameters()))

    def step() -> None:
        optimizer.step()

    run = framesmith.compile(step, strict=True) if compiles else step
    losses = []
    for at in range(7):
        optimizer.zero_grad(set_to_none=at % 3 == 0)
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        if at == 4:
            model[0].weight.grad = None
        run()
        losses.append(loss.detach())
    state = [value for per in optimizer.state.values() for _, value in sorted(per.items())]
    return [*model.parameters(), *losses, *state]


@pytest.mark.parametrize("name", [*WHOLE, *BROKEN])
def test_steps_are_eagers(name: str) -> None:
    framesmith.reset()
    make = WHOLE.get(name) or BROKEN[name]
    for found, wanted in zip(trained(make, True), trained(make, False), strict=True):
        torch.testing.assert_close(found, wanted)
    if name in WHOLE:
        assert framesmith.stats()["frames_compiled"] > 0


@pytest.mark.parametrize("used", [False, True])
def test_a_step_is_one_graph(used: bool) -> None:
    """Also when torch.compile was used before: that wraps methods of all optimizers, to keep itself away."""
    if used:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    for make in WHOLE.values():
        framesmith.reset()
        parameters = [torch.nn.Parameter(torch.randn(3)) for _ in range(3)]
        optimizer = make(parameters)
        for parameter in parameters:
            parameter.grad = torch.randn(3)
        optimizer.step()

        def step(optimizer: Any = optimizer) -> None:
            optimizer.step()

        told = framesmith.explain(step)
        assert (told.graph_count, told.break_count) == (1, 0), told


def test_a_whole_training_step() -> None:
    def train(model: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.clamp_(-0.1, 0.1)
        optimizer.step()
        return loss

    found = []
    for run in (train, framesmith.compile(train, strict=True)):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = [run(model, optimizer, torch.randn(3, 4)).detach() for _ in range(4)]
        found.append([*losses, *model.parameters(), *(p.grad for p in model.parameters())])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)

"""Training steps with `torch.amp.GradScaler`, some of which find infinite gradients, against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import framesmith

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.1),
    "Adam, fused": lambda parameters: torch.optim.Adam(parameters, 0.1, fused=True),
}
STEPS = 10


def trained(name: str, clips: bool, compiles: bool) -> list[Any]:
    """Losses, parameters, and the states of the scaler and the optimizer; two steps in the middle are skipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = OPTIMIZERS[name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    run = framesmith.compile(step, strict=True) if compiles else step
    losses = []
    for at in range(STEPS):
        x = torch.linspace(-1, 1, 20).reshape(5, 4) * (at + 1)
        if at in (4, 5):
            x[0, 0] = float("inf")
        losses.append(run(x))
    states = [dict(state) for state in optimizer.state.values()]
    return [losses, [parameter.detach() for parameter in model.parameters()], scaler.state_dict(), states]


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_skipped_steps_change_nothing(name: str, clips: bool) -> None:
    """One graph, but for a first step that makes state if it is not skipped: that ends the graph there, once."""
    framesmith.reset()
    found = trained(name, clips, True)
    torch.testing.assert_close(found, trained(name, clips, False), rtol=1e-4, atol=1e-5, equal_nan=True)
    stats = framesmith.stats()
    assert stats["frames_failed"] == 0
    assert stats["breaks"] <= int(name in ("momentum", "Adam"))
    assert stats["recompilations"] == 1


def test_two_optimizers_have_steps_of_their_own() -> None:
    """`id()` of the optimizer is the key of its state in the scaler."""

    def trained_by(compiles: bool) -> list[Any]:
        torch.manual_seed(0)
        models = [nn.Linear(3, 3), nn.Linear(3, 3)]
        optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

        def step(x: torch.Tensor, which: int) -> None:
            optimizer = optimizers[which]
            optimizer.zero_grad()
            scaler.scale(models[which](x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        run = framesmith.compile(step, strict=True) if compiles else step
        for at in range(6):
            run(torch.full((2, 3), float("inf") if at == 3 else at + 1.0), at % 2)
        return [scaler.state_dict(), *(p.detach() for model in models for p in model.parameters())]

    framesmith.reset()
    torch.testing.assert_close(trained_by(True), trained_by(False))
    assert framesmith.stats()["breaks"] == 0


def test_a_scaler_refuses_a_second_step_as_in_eager_mode() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], 0.1)
    scaler = torch.amp.GradScaler("cpu")

    @framesmith.compile
    def step(x: torch.Tensor) -> None:
        scaler.scale((parameter * x).sum()).backward()
        scaler.step(optimizer)

    step(torch.ones(2))
    with pytest.raises(RuntimeError, match="since the last update"):
        step(torch.ones(2))

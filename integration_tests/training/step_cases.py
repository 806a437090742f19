"""Whole training steps, `backward()` inside, and the same as parts: what computes the losses, and what follows."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass
class Step:
    """A training step on a batch, and the parts of it that a program may compile separately.

    `parts` are its functions by the names under which `whole` calls them; `state` gives what a step changes.
    """

    whole: Callable[..., object]
    parts: dict[str, Callable[..., object]]
    state: Callable[[], list[torch.Tensor]]


def simple(loss_of: Callable[..., torch.Tensor], update: Callable[[], None], *modules: nn.Module) -> Step:
    """A loss, its backward pass, and what follows."""

    def step(x: torch.Tensor, loss_of: Callable[..., torch.Tensor], update: Callable[[], None]) -> torch.Tensor:
        loss = loss_of(x)
        loss.backward()
        update()
        return loss.detach()

    return Step(step, {"loss_of": loss_of, "update": update}, state_of(*modules))


def network() -> nn.Module:
    """Four layers, of the kinds that most models have."""
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def squares(model: nn.Module) -> Callable[..., torch.Tensor]:
    """The mean square of what the model gives."""

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    return loss_of


def stepping(
    optimizer: torch.optim.Optimizer, before: Callable[[], object] | None = None, *others: torch.optim.Optimizer
) -> Callable[[], None]:
    """The optimizer's step, with something before it, and no gradients behind it: of the `others` neither."""

    def update() -> None:
        if before is not None:
            before()
        optimizer.step()
        optimizer.zero_grad()
        for other in others:
            other.zero_grad()

    return update


def state_of(*modules: nn.Module) -> Callable[[], list[torch.Tensor]]:
    """The modules' parameters and buffers."""
    return lambda: [value for module in modules for value in (*module.parameters(), *module.buffers())]


def adamw() -> Step:
    model = network()
    return simple(squares(model), stepping(torch.optim.AdamW(model.parameters(), 1e-2)), model)


def momentum() -> Step:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9, weight_decay=1e-3)
    return simple(squares(model), stepping(optimizer), model)


def autocast() -> Step:
    model = network()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        return y.float().square().mean()

    return simple(loss_of, stepping(torch.optim.AdamW(model.parameters(), 1e-2)), model)


def scaled() -> Step:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return scaler.scale(model(x).square().mean())

    def update() -> None:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return simple(loss_of, update, model)


def gan() -> Step:
    generator, judge = network(), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    first = torch.optim.Adam(judge.parameters(), 1e-2)
    second = torch.optim.Adam(generator.parameters(), 1e-2)

    def judged(x: torch.Tensor) -> torch.Tensor:
        made = generator(x).detach()
        return functional.softplus(-judge(x[:, :4])).mean() + functional.softplus(judge(made)).mean()

    def fooled(x: torch.Tensor) -> torch.Tensor:
        return functional.softplus(-judge(generator(x))).mean()

    def step(x: torch.Tensor, **parts: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        one = parts["judged"](x)
        one.backward()
        parts["first"]()
        other = parts["fooled"](x)
        other.backward()
        parts["second"]()
        return one.detach(), other.detach()

    updates = {"first": stepping(first), "second": stepping(second, None, first)}
    return Step(step, {"judged": judged, "fooled": fooled, **updates}, state_of(generator, judge))


def accumulation() -> Step:
    model = network()

    def step(x: torch.Tensor, loss_of: Callable[..., torch.Tensor], update: Callable[[], None]) -> torch.Tensor:
        total = torch.zeros(())
        for piece in x.chunk(4):
            loss = loss_of(piece)
            loss.backward()
            total += loss.detach()
        update()
        return total

    update = stepping(torch.optim.AdamW(model.parameters(), 1e-2))
    return Step(step, {"loss_of": squares(model), "update": update}, state_of(model))


def clipped_by_norm() -> Step:
    model = network()
    parameters = [*model.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-2)
    return simple(squares(model), stepping(optimizer, lambda: nn.utils.clip_grad_norm_(parameters, 0.1)), model)


def clipped_by_value() -> Step:
    model = network()
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, 1e-2)
    return simple(squares(model), stepping(optimizer, lambda: nn.utils.clip_grad_value_(parameters, 0.01)), model)


def scheduled() -> Step:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

    return simple(squares(model), update, model)


def averaged() -> Step:
    model = network()
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 0.1)

    return simple(squares(model), update, model, average)


def two_losses() -> Step:
    model = network()

    def losses(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = model(x)
        return y.square().mean(), (y - x[:, :4]).abs().mean()

    def step(x: torch.Tensor, losses: Callable[..., Any], update: Callable[[], None]) -> object:
        one, other = losses(x)
        one.backward(retain_graph=True)
        other.backward()
        update()
        return one.detach(), other.detach()

    update = stepping(torch.optim.AdamW(model.parameters(), 1e-2))
    return Step(step, {"losses": losses, "update": update}, state_of(model))


def gradient_penalty() -> Step:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def value_of(x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()

    def penalty(y: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        return y.square() + (slope.norm(dim=1) - 1).square().mean()

    def step(x: torch.Tensor, **parts: Callable[..., Any]) -> torch.Tensor:
        y = parts["value_of"](x)
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        loss: torch.Tensor = parts["penalty"](y, slope)
        loss.backward()
        parts["update"]()
        return loss.detach()

    update = stepping(torch.optim.SGD(model.parameters(), 1e-3))
    return Step(step, {"value_of": value_of, "penalty": penalty, "update": update}, state_of(model))


def checkpointed() -> Step:
    model = network()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(model, x, use_reentrant=False).square().mean()
        return found

    return simple(loss_of, stepping(torch.optim.SGD(model.parameters(), 1e-2)), model)


def frozen() -> Step:
    body, head = network(), nn.Linear(4, 2)
    body.requires_grad_(False)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return head(body(x)).square().mean()

    return simple(loss_of, stepping(torch.optim.AdamW(head.parameters(), 1e-2)), body, head)


def hooked() -> Step:
    model = network()
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad.clamp(-1, 1) * 0.5)
    return simple(squares(model), stepping(torch.optim.SGD(model.parameters(), 1e-2)), model)


def updated_by_hooks() -> Step:
    model = network()

    def follow(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=1e-2)
        parameter.grad = None

    def step(x: torch.Tensor, loss_of: Callable[..., torch.Tensor]) -> torch.Tensor:
        loss = loss_of(x)
        loss.backward()
        return loss.detach()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(follow)
    return Step(step, {"loss_of": squares(model)}, state_of(model))


def kept_gradients() -> Step:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return simple(squares(model), update, model)


def by_hand() -> Step:
    model = network()
    parameters = [*model.parameters()]

    def update() -> None:
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter -= 1e-2 * parameter.grad
                parameter.grad = None

    return simple(squares(model), update, model)


def in_a_closure() -> Step:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def step(x: torch.Tensor, loss_of: Callable[..., torch.Tensor]) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(x)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return Step(step, {"loss_of": squares(model)}, state_of(model))


#: name -> a new step
CASES: dict[str, Callable[[], Step]] = {
    "AdamW": adamw,
    "SGD with momentum": momentum,
    "autocast": autocast,
    "GradScaler": scaled,
    "GAN": gan,
    "accumulation": accumulation,
    "clipping by norm": clipped_by_norm,
    "clipping by value": clipped_by_value,
    "scheduler": scheduled,
    "moving average": averaged,
    "closure": in_a_closure,
    "two losses": two_losses,
    "gradient penalty": gradient_penalty,
    "checkpoint": checkpointed,
    "frozen part": frozen,
    "hooks": hooked,
    "updates in hooks": updated_by_hooks,
    "gradients set to zero": kept_gradients,
    "update by hand": by_hand,
}
#: Rows and columns of a batch.
BATCH = (8, 8)

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def new_step(name: str, how: str, compile: Compile) -> tuple[Callable[[torch.Tensor], Any], Step]:
    """A new step, and its state: compiled `whole`, or its parts `separate`."""
    torch.manual_seed(0)
    case = CASES[name]()
    if how == "whole":
        return functools.partial(compile(case.whole), **case.parts), case
    return functools.partial(case.whole, **{part: compile(fn) for part, fn in case.parts.items()}), case

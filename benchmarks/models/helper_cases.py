"""Helpers around an optimizer in a whole training step: schedulers, clipping, scaling, averages, closures, hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer, lr_scheduler, swa_utils
from torch.optim.lr_scheduler import LRScheduler

Loss = Callable[[torch.Tensor], torch.Tensor]
Scheduling = Callable[[Optimizer], Any]


@dataclass
class Training:
    """A model, its optimizer, a step on a batch, and what else a step changes: objects with a `state_dict`."""

    model: nn.Module
    optimizer: Optimizer
    step: Loss = field(init=False)
    others: list[Any] = field(default_factory=list)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(x).square().mean()
        return found

    def state(self) -> list[Any]:
        """The objects that a step changes, as `state_dict`s."""
        return [one.state_dict() for one in (self.model, self.optimizer, *self.others)]


MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)


def new(make: Callable[..., Optimizer] = MOMENTUM, norm: bool = False) -> Training:
    torch.manual_seed(0)
    between: list[nn.Module] = [nn.BatchNorm1d(8)] if norm else []
    model = nn.Sequential(nn.Linear(8, 8), *between, nn.Tanh(), nn.Linear(8, 4))
    return Training(model, make(model.parameters()))


def stepping(
    training: Training,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> Training:
    """A step with something between the backward pass and the optimizer, and behind the latter."""
    optimizer = training.optimizer

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = training.loss(x)
        loss.backward()
        before()
        optimizer.step()
        after()
        return loss.detach()

    training.step = step
    return training


def scheduled(make: Scheduling) -> Training:
    training = new()
    scheduler = make(training.optimizer)
    training.others.append(scheduler)
    return stepping(training, after=scheduler.step)


def _sequential(optimizer: Optimizer) -> LRScheduler:
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.ExponentialLR(optimizer, 0.9)], [3])


def _chained(optimizer: Optimizer) -> Any:
    first = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=2)
    return lr_scheduler.ChainedScheduler([first, lr_scheduler.ExponentialLR(optimizer, 0.9)])


def on_plateau() -> Training:
    training = new()
    scheduler = lr_scheduler.ReduceLROnPlateau(training.optimizer, patience=1)
    optimizer = training.optimizer

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = training.loss(x)
        loss.backward()
        optimizer.step()
        scheduler.step(loss)
        return loss.detach()

    training.step = step
    training.others.append(scheduler)
    return training


def clipped(**options: Any) -> Training:
    training = new()
    parameters = [*training.model.parameters()]
    return stepping(training, before=lambda: nn.utils.clip_grad_norm_(parameters, 0.1, **options))


def clipped_by_value() -> Training:
    training = new()
    return stepping(training, before=lambda: nn.utils.clip_grad_value_(training.model.parameters(), 0.01))


def total_norm() -> Training:
    training = new()

    def scale() -> None:
        grads = [p.grad for p in training.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        nn.utils.clip_grads_with_norm_(training.model.parameters(), 0.5, norm)

    return stepping(training, before=scale)


def scaled(unscales: bool) -> Training:
    training = new(partial(SGD, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    optimizer = training.optimizer

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = training.loss(x)
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    training.step = step
    training.others.append(scaler)
    return training


def averaged(**options: Any) -> Training:
    training = new(norm=True)
    average = swa_utils.AveragedModel(training.model, **options)
    training.others.append(average)
    return stepping(training, after=lambda: average.update_parameters(training.model))


def batch_statistics() -> Training:
    """`update_bn` over two batches, behind a step."""
    training = new(norm=True)
    batches = [torch.linspace(-1, at + 1, 32).reshape(4, 8) for at in range(2)]
    return stepping(training, after=lambda: swa_utils.update_bn(batches, training.model))


def in_a_closure() -> Training:
    training = new(partial(Adam, lr=0.01))
    optimizer = training.optimizer

    def step(x: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = training.loss(x)
            loss.backward()
            return loss

        found: torch.Tensor = optimizer.step(closure)  # type: ignore[assignment]
        return found.detach()

    training.step = step
    return training


def zeroed() -> Training:
    training = new()
    return stepping(training, after=lambda: training.optimizer.zero_grad(set_to_none=False))


def noisy() -> Training:
    training = new()

    def add_noise() -> None:
        for parameter in training.model.parameters():
            assert parameter.grad is not None
            parameter.grad += 0.01 * torch.randn_like(parameter.grad)

    return stepping(training, before=add_noise)


def sharpness_aware() -> Training:
    """A second backward pass at the point where the loss is greatest nearby."""
    training = new()
    parameters, optimizer = [*training.model.parameters()], training.optimizer

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = training.loss(x)
        loss.backward()
        with torch.no_grad():
            grads = [p.grad for p in parameters if p.grad is not None]
            norm = torch.stack([grad.norm() for grad in grads]).norm()
            moves = [grad * (0.05 / (norm + 1e-12)) for grad in grads]
            torch._foreach_add_(parameters, moves)
        optimizer.zero_grad()
        training.loss(x).backward()
        with torch.no_grad():
            torch._foreach_sub_(parameters, moves)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    training.step = step
    return training


def in_the_backward_pass() -> Training:
    """Each parameter has an optimizer of its own, which a hook behind its gradient calls."""
    training = new()
    optimizers = {p: SGD([p], lr=0.1) for p in training.model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in training.model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = training.loss(x)
        loss.backward()
        return loss.detach()

    training.step = step
    return training


#: name -> a new training
HELPERS: dict[str, Callable[[], Training]] = {
    "LambdaLR": lambda: scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch)),
    "StepLR": lambda: scheduled(lambda o: lr_scheduler.StepLR(o, 3)),
    "CosineAnnealingLR": lambda: scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
    "OneCycleLR": lambda: scheduled(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40)),
    "SequentialLR": lambda: scheduled(_sequential),
    "ChainedScheduler": lambda: scheduled(_chained),
    "ReduceLROnPlateau": on_plateau,
    "SWALR": lambda: scheduled(lambda o: swa_utils.SWALR(o, swa_lr=0.01, anneal_epochs=5)),
    "clip_grad_norm_": clipped,
    "clip_grad_norm_ foreach": partial(clipped, foreach=True, norm_type=float("inf")),
    "clip_grad_norm_ checked": partial(clipped, error_if_nonfinite=True),
    "clip_grad_value_": clipped_by_value,
    "get_total_norm": total_norm,
    "GradScaler": partial(scaled, unscales=False),
    "GradScaler unscale_": partial(scaled, unscales=True),
    "AveragedModel": averaged,
    "AveragedModel EMA": lambda: averaged(multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True),
    "update_bn": batch_statistics,
    "closure": in_a_closure,
    "zero_grad to zero": zeroed,
    "gradient noise": noisy,
    "SAM": sharpness_aware,
    "optimizer in backward": in_the_backward_pass,
}
STEPS = 10


def trained(name: str, compile: Callable[[Loss], Loss], steps: int = STEPS) -> list[Any]:
    """Return the losses of some steps and the state behind them."""
    training = HELPERS[name]()
    torch.manual_seed(1)
    step = compile(training.step)
    losses = [step(torch.randn(4, 8)) for _ in range(steps)]
    return [losses, training.state(), torch.get_rng_state()]

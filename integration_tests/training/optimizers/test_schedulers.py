"""Steps of learning rate schedulers in whole training steps: calls after the graph, equal to eager mode's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, lr_scheduler

import framesmith
from integration_tests.training.optimizers.test_helper_cases import comparable

STEPS = 8


class Trainer:
    """A model, its optimizer, a scheduler, and what a step does after the scheduler's."""

    def __init__(
        self,
        make: Callable[[torch.optim.Optimizer], Any],
        after: Callable[[Trainer], object] = lambda trainer: None,
        optimizer: Callable[..., torch.optim.Optimizer] = partial(SGD, lr=0.1, momentum=0.9),
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        self.optimizer = optimizer(self.model.parameters())
        self.scheduler = make(self.optimizer)
        self.after = after
        self.count = 0

    def update(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def step(self, x: torch.Tensor) -> object:
        loss = self.update(x)
        self.scheduler.step()
        return loss, self.after(self)


def trained(trainer: Trainer, compile: Callable[..., Any]) -> list[Any]:
    """Return the results, or the errors' texts, of steps, with the states behind each."""
    torch.manual_seed(1)
    step, found = compile(trainer.step), []
    for _ in range(STEPS):
        try:
            found.append(step(torch.randn(3, 4)))
        except ValueError as error:
            found.append([float(len(str(error)))])
        owners = (trainer.model, trainer.optimizer, trainer.scheduler)
        found.append(comparable([owner.state_dict() for owner in owners]))
    return found


def compared(make: Callable[[], Trainer]) -> dict[str, int]:
    """Compare a trainer's steps with eager mode's, and return what was compiled."""
    framesmith.reset()
    found = trained(make(), partial(framesmith.compile, backend="eager", strict=True))
    stats = framesmith.stats()
    torch.testing.assert_close(comparable(found), comparable(trained(make(), lambda step: step)))
    return stats


def _warmed_up(epoch: int, begin: int, end: int) -> float:
    return epoch / max(1, begin) if epoch < begin else max(0.0, (end - epoch) / (end - begin))


def _two(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    inner = [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.CosineAnnealingLR(optimizer, 5)]
    return lr_scheduler.SequentialLR(optimizer, inner, [3])


def _update_again(trainer: Trainer) -> torch.Tensor:
    return trainer.update(torch.ones(3, 4))


@pytest.mark.parametrize(
    "make",
    [
        partial(lr_scheduler.MultiStepLR, milestones=[2, 5]),
        partial(lr_scheduler.LambdaLR, lr_lambda=partial(_warmed_up, begin=2, end=6)),
        partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda epoch: 0.5 if epoch % 3 == 0 else 1.0),
        partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3),
        partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=3),
        partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=5),  # later steps raise
        _two,
    ],
)
def test_two_graphs_are_enough_for_any_number_of_steps(make: Callable[..., Any]) -> None:
    stats = compared(lambda: Trainer(make))
    assert (stats["graphs"], stats["breaks"], stats["frames_compiled"]) == (2, 0, 2)


@pytest.mark.parametrize(
    "after",
    [
        lambda trainer: trainer.scheduler.get_last_lr(),
        lambda trainer: trainer.scheduler.state_dict()["last_epoch"],
        lambda trainer: trainer.optimizer.param_groups[0]["lr"] + 1,
        lambda trainer: trainer.optimizer.param_groups[0].update(lr=0.05),
        _update_again,
    ],
)
def test_uses_of_what_a_step_changes_see_it(after: Callable[[Trainer], object]) -> None:
    compared(lambda: Trainer(partial(lr_scheduler.StepLR, step_size=3), after))


def test_functions_that_change_what_the_trace_reads_are_interpreted() -> None:
    def make() -> Trainer:
        seen: list[int] = []

        def logging(epoch: int) -> float:
            seen.append(epoch)
            return 0.9

        return Trainer(partial(lr_scheduler.LambdaLR, lr_lambda=logging), lambda trainer: list(seen))

    compared(make)


def test_functions_read_what_has_changed_by_their_call() -> None:
    """Even where the trace changes it again."""

    def make() -> Trainer:
        held = [0]

        class Counting(Trainer):
            def update(self, x: torch.Tensor) -> torch.Tensor:
                self.count += 1
                held[0] = self.count
                return super().update(x)

        def forget(trainer: Trainer) -> None:
            held[0] = -1

        return Counting(partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 0.9 ** held[0]), forget)

    compared(make)


def test_a_function_put_in_place_of_another_is_seen() -> None:
    def replace(trainer: Trainer) -> None:
        if trainer.count == 3:
            trainer.scheduler.lr_lambdas[0] = lambda epoch: 0.5

    class Replacing(Trainer):
        def step(self, x: torch.Tensor) -> object:
            self.count += 1
            return super().step(x)

    made = partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 0.9**epoch)
    compared(lambda: Replacing(made, replace))


def test_rates_in_tensors_are_changed_in_the_graph() -> None:
    make = partial(lr_scheduler.ExponentialLR, gamma=0.9)
    compared(lambda: Trainer(make, _update_again, lambda ps: Adam(ps, lr=torch.tensor(0.1))))


@pytest.mark.parametrize("of", [lambda loss: loss, lambda loss: loss.item(), lambda loss: 1.0])
def test_a_metric_is_read_after_the_graph(of: Callable[[torch.Tensor], object]) -> None:
    class Measured(Trainer):
        def step(self, x: torch.Tensor) -> object:
            loss = self.update(x)
            self.scheduler.step(metrics=of(loss))
            return loss + 1

    make = partial(lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5, threshold=10.0)
    stats = compared(lambda: Measured(make))
    assert (stats["graphs"], stats["breaks"]) == (2, 0)

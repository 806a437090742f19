"""Second derivatives through compiled modules: gradient penalties, Hessians times vectors, steps of MAML.

The module is compiled, the derivatives are taken outside. torch.compile refuses most of it, and is left out there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.graph_counts import forget
from benchmarks.harness.timing import Row, Step, compare, print_rows

Tensor = torch.Tensor
Module = Callable[[Tensor], Tensor]
Derivatives = Callable[[nn.Module, Module, Tensor], object]


def small() -> tuple[nn.Module, Tensor]:
    """An MLP of 16 channels: overhead alone."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1)), torch.randn(8, 8)


def mlp() -> tuple[nn.Module, Tensor]:
    """An MLP of 256 channels with a layer norm."""
    layers = nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LayerNorm(256), nn.SiLU(), nn.Linear(256, 1)
    return nn.Sequential(*layers), torch.randn(64, 64)


def with_dropout() -> tuple[nn.Module, Tensor]:
    """An MLP of 512 channels with dropout."""
    hidden = nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.3)
    return nn.Sequential(nn.Linear(64, 512), nn.Tanh(), *hidden, nn.Linear(512, 1)), torch.randn(64, 64)


def convolutions() -> tuple[nn.Module, Tensor]:
    """A critic with convolutions."""
    first = nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2)
    second = nn.Conv2d(32, 64, 4, 2, 1), nn.InstanceNorm2d(64, affine=True), nn.LeakyReLU(0.2)
    return nn.Sequential(*first, *second, nn.Conv2d(64, 1, 8)), torch.randn(8, 3, 32, 32)


def penalty(module: nn.Module, run: Module, x: Tensor) -> None:
    """The gradient penalty of WGAN-GP, and its gradients."""
    between = x.clone().requires_grad_()
    [grad] = torch.autograd.grad(run(between).sum(), between, create_graph=True)
    module.zero_grad()
    (grad.flatten(1).norm(2, 1) - 1).pow(2).mean().backward()


def hessian_times_vector(module: nn.Module, run: Module, x: Tensor) -> object:
    """The Hessian of the loss, times a vector."""
    weights = [*module.parameters()]
    grads = torch.autograd.grad(run(x).pow(2).mean(), weights, create_graph=True)
    return torch.autograd.grad(grads, weights, [grad.detach() for grad in grads])


def maml(module: nn.Module, run: Module, x: Tensor) -> None:
    """One inner step and its outer gradients."""
    weights = dict(module.named_parameters())

    def loss(of: dict[str, Tensor]) -> Tensor:
        found: Tensor = torch.func.functional_call(run, of, (x,))  # type: ignore[arg-type]
        return found.pow(2).mean()

    grads = torch.autograd.grad(loss(weights), [*weights.values()], create_graph=True)
    module.zero_grad()
    loss({name: one - 0.1 * grad for (name, one), grad in zip(weights.items(), grads, strict=True)}).backward()


MODULES = small, mlp, with_dropout, convolutions
DERIVATIVES: tuple[Derivatives, ...] = penalty, hessian_times_vector, maml


def run() -> list[Row]:
    """All derivatives of all modules."""
    rows: list[Row] = []
    for made in MODULES:
        for derivatives in DERIVATIVES:
            forget()
            steps = {name: _step(name, made, derivatives) for name in available()}
            found = compare(
                f"{derivatives.__name__}, {made.__name__}",
                {name: step for name, step in steps.items() if _works(step)},
            )
            print_rows(found)
            rows += found
    return rows


def _step(candidate: str, made: Callable[[], tuple[nn.Module, Tensor]], derivatives: Derivatives) -> Step:
    torch.manual_seed(0)
    module, x = made()
    compiled = wrap(candidate, module)
    return lambda: derivatives(module, compiled, x)


def _works(step: Step) -> bool:
    try:
        step()
    except RuntimeError as error:
        if "double backward" not in str(error):
            raise
        return False
    return True

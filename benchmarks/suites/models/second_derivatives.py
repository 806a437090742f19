"""Second derivatives of modules: gradient penalties, Hessians times vectors, steps of MAML, each in two forms.

In the form `outside` the module is compiled and the derivatives are taken in eager mode; torch.compile refuses that. In
the form `inside` the whole step is one compiled function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.measuring import measure_isolated
from benchmarks.harness.registry import matching
from benchmarks.harness.summary import print_summary
from benchmarks.harness.tensors_made import PEAK
from benchmarks.harness.timing import Row, Step
from benchmarks.models.selection import Selection

Tensor = torch.Tensor
Module = Callable[[Tensor], Tensor]
Derivatives = Callable[[nn.Module, Module, Tensor], object]

ROUNDS = 15
#: Steps before the first that is timed.
FIRST = 3


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


MODULES = {one.__name__: one for one in (small, mlp, with_dropout, convolutions)}
DERIVATIVES: dict[str, Derivatives] = {
    "penalty": penalty, "hessian_times_vector": hessian_times_vector, "maml": maml
}  # fmt: skip
FORMS = "outside", "inside"


@dataclass(frozen=True)
class Case:
    """Derivatives of a module in a form, `kind`."""

    derivatives: str
    module: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.derivatives}, {self.module}, {self.kind}"


CASES = tuple(Case(*one) for one in itertools.product(DERIVATIVES, MODULES, FORMS))


def prepare(name: str, candidate: str) -> Step:
    """A candidate's step of a case, called so often that it is compiled."""
    [case] = matching(CASES, name, "case")
    torch.manual_seed(0)
    module, x = MODULES[case.module]()
    derivatives = DERIVATIVES[case.derivatives]
    if case.kind == "inside":
        step = partial(wrap(candidate, lambda x: derivatives(module, module, x)), x)
    else:
        step = partial(derivatives, module, wrap(candidate, module), x)
    for _ in range(FIRST):
        step()
    return step


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for, with the most bytes that a step's own tensors hold."""
    selection = selection or Selection()
    names, rounds = selection.among(available()), selection.rounds_or(ROUNDS)
    rows: list[Row] = []
    for case in matching(CASES, selection.only, "case"):
        found = measure_isolated(case.name, names, prepare, case.name, rounds=rounds, figure=PEAK)
        selection.keep(found)
        rows += found
    print_summary(rows)
    return rows

"""Optimizer steps over 60 parameters, by hand and of torch's optimizers, and a moving average of them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

import framesmith
from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.timing import Row, compare, print_rows

Tensors = list[torch.Tensor]

#: Of a small transformer's blocks: matrices and vectors.
SHAPES = [(64, 64)] * 20 + [(64,)] * 20 + [(256, 64)] * 10 + [(256,)] * 10


def adam(parameters: Tensors, gradients: Tensors, first: Tensors, second: Tensors) -> None:
    """A step of Adam, parameter by parameter."""
    for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def adam_at_once(parameters: Tensors, gradients: Tensors, first: Tensors, second: Tensors) -> None:
    """The same by operators over all parameters."""
    torch._foreach_lerp_(first, gradients, 0.1)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, gradients, gradients, 0.001)
    divisors = torch._foreach_sqrt(second)
    torch._foreach_add_(divisors, 1e-8)
    torch._foreach_addcdiv_(parameters, first, divisors, -1e-3)


def momentum(parameters: Tensors, gradients: Tensors, first: Tensors, second: Tensors) -> None:
    """A step of stochastic gradient descent with momentum and weight decay."""
    for p, g, m in zip(parameters, gradients, first, strict=True):
        m.mul_(0.9).add_(g + 0.01 * p)
        p.sub_(m, alpha=0.01)


def moving_average(parameters: Tensors, gradients: Tensors, first: Tensors, second: Tensors) -> None:
    """An average that follows the parameters."""
    for p, m in zip(parameters, first, strict=True):
        m.lerp_(p, 0.01)


CASES: dict[str, Callable[..., None]] = {
    "Adam, one by one": adam,
    "Adam, all at once": adam_at_once,
    "momentum": momentum,
    "moving average": moving_average,
}

#: Torch's own, and their options.
OPTIMIZERS: dict[str, Callable[[Tensors], torch.optim.Optimizer]] = {
    "torch's Adam, one by one": functools.partial(torch.optim.Adam, foreach=False),
    "torch's Adam, all at once": functools.partial(torch.optim.Adam, foreach=True),
    "torch's AdamW, fused": functools.partial(torch.optim.AdamW, fused=True),
    "torch's NAdam, all at once": functools.partial(torch.optim.NAdam, foreach=True),
    "torch's RAdam, one by one": functools.partial(torch.optim.RAdam, foreach=False),
    "torch's RAdam, all at once": functools.partial(torch.optim.RAdam, foreach=True),
    "torch's ASGD, all at once": functools.partial(torch.optim.ASGD, foreach=True),
    "torch's Adamax, all at once": functools.partial(torch.optim.Adamax, foreach=True),
    "torch's SGD with momentum": functools.partial(torch.optim.SGD, momentum=0.9, foreach=True),
}


def step_of(candidate: str, make: Callable[[Tensors], torch.optim.Optimizer]) -> Callable[[], None]:
    """A step of an optimizer of its own, which no other candidate changes."""
    torch.manual_seed(0)
    parameters: Tensors = [torch.nn.Parameter(torch.rand(shape)) for shape in SHAPES]
    optimizer = make(parameters)
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)

    def step() -> None:
        optimizer.step()

    return wrap(candidate, step)


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = []
    for title, fn in CASES.items():
        torch.manual_seed(0)
        lists = [[torch.rand(shape) for shape in SHAPES] for _ in range(4)]
        steps = {name: functools.partial(wrap(name, fn), *lists) for name in available()}
        rows += compare(f"{title}, 60 tensors", steps)
        print_rows(rows[-len(steps) :])
    for title, make in OPTIMIZERS.items():
        torch.compiler.reset()  # they share the code of the step
        framesmith.reset()
        rows += compare(f"{title}, 60 tensors", {name: step_of(name, make) for name in available()})
        print_rows(rows[-len(available()) :])
    return rows

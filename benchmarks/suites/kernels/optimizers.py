"""Optimizer steps over 60 and 500 parameters, by hand and of torch's optimizers, and a moving average of them."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Sequence

import torch

import framesmith
from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.timing import Row, compare, print_rows
from benchmarks.models.selection import Selection

Tensors = list[torch.Tensor]
Shapes = Sequence[tuple[int, ...]]

ROUNDS = 15

#: Of a small transformer's blocks: matrices and vectors.
SHAPES: Shapes = [(64, 64)] * 20 + [(64,)] * 20 + [(256, 64)] * 10 + [(256,)] * 10
#: Of a deep network's: torch.compile takes minutes for each of these steps.
MANY_SHAPES: Shapes = [(64,), (256,), (1024,), (4096,), (64, 64)] * 100


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
    "torch's Adam, fused": functools.partial(torch.optim.Adam, fused=True),
    "torch's AdamW, all at once": functools.partial(torch.optim.AdamW, foreach=True),
    "torch's AdamW, fused": functools.partial(torch.optim.AdamW, fused=True),
    "torch's NAdam, all at once": functools.partial(torch.optim.NAdam, foreach=True),
    "torch's RAdam, one by one": functools.partial(torch.optim.RAdam, foreach=False),
    "torch's RAdam, all at once": functools.partial(torch.optim.RAdam, foreach=True),
    "torch's ASGD, all at once": functools.partial(torch.optim.ASGD, foreach=True),
    "torch's Adamax, all at once": functools.partial(torch.optim.Adamax, foreach=True),
    "torch's Adagrad, all at once": functools.partial(torch.optim.Adagrad, foreach=True),
    "torch's RMSprop, all at once": functools.partial(torch.optim.RMSprop, foreach=True),
    "torch's SGD": functools.partial(torch.optim.SGD, foreach=True),
    "torch's SGD with momentum": functools.partial(torch.optim.SGD, momentum=0.9, foreach=True),
    "clipping and torch's AdamW": functools.partial(torch.optim.AdamW, foreach=True),
}
#: Of these a step begins with the clipping of gradients.
CLIPPED = {"clipping and torch's AdamW"}


def step_of(candidate: str, title: str, shapes: Shapes) -> Callable[[], None]:
    """A step of an optimizer of its own, which no other candidate changes."""
    torch.manual_seed(0)
    parameters: Tensors = [torch.nn.Parameter(torch.rand(shape)) for shape in shapes]
    optimizer = OPTIMIZERS[title](parameters)
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)

    def step() -> None:
        if title in CLIPPED:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return wrap(candidate, step)


def by_hand(candidates: list[str], title: str) -> dict[str, Callable[[], None]]:
    torch.manual_seed(0)
    lists = [[torch.rand(shape) for shape in SHAPES] for _ in range(4)]
    return {name: functools.partial(wrap(name, CASES[title]), *lists) for name in candidates}


def of_torch(candidates: list[str], title: str, shapes: Shapes) -> dict[str, Callable[[], None]]:
    torch.compiler.reset()  # they share the code of the step
    framesmith.reset()
    return {name: step_of(name, title, shapes) for name in candidates}


def run(selection: Selection) -> list[Row]:
    """The cases of this suite whose titles match."""
    candidates = selection.among(available())
    cases = {f"{title}, 60 tensors": functools.partial(by_hand, candidates, title) for title in CASES}
    for shapes in (SHAPES, MANY_SHAPES):
        for title in OPTIMIZERS:
            cases[f"{title}, {len(shapes)} tensors"] = functools.partial(of_torch, candidates, title, shapes)
    rows: list[Row] = []
    for case, prepare in cases.items():
        if fnmatch.fnmatch(case, selection.only):
            found = compare(case, prepare(), rounds=selection.rounds_or(ROUNDS))
            print_rows(found)
            selection.keep(found)
            rows += found
    return rows

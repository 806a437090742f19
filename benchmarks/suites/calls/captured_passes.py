"""Training steps with and without `compile_backward`, heavy in hooks or in accumulation; forward eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

import framesmith
from benchmarks.harness.graph_counts import forget
from benchmarks.harness.timing import Row, compare, print_rows

WIDTH, ROWS, LAYERS, MICRO_BATCHES = 64, 32, 8, 4

#: A model, and how many passes a step has.
Case = tuple[nn.Module, int]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)])


def without_hooks() -> Case:
    return model(), 1


def hooks_of_parameters() -> Case:
    net = model()
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
    return net, 1


def hooks_of_activations() -> Case:
    net = model()

    def hook(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        out.register_hook(lambda gradient: gradient.clamp(-1, 1))

    for layer in net:
        layer.register_forward_hook(hook)
    return net, 1


def hooks_after_accumulation() -> Case:
    net = model()

    def update(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=1e-4)
        parameter.grad = None

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return net, 1


def accumulation() -> Case:
    return model(), MICRO_BATCHES


class Gates(nn.Module):
    """Many small parameters, whose gradients are cheap to compute and to write."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gates = nn.ParameterList(torch.randn(WIDTH) for _ in range(60))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for gate in self.gates:
            x = torch.tanh(x * gate)
        return x


def accumulation_of_small_parameters() -> Case:
    return Gates(), MICRO_BATCHES


CASES: tuple[Callable[[], Case], ...] = (
    without_hooks,
    hooks_of_parameters,
    hooks_of_activations,
    hooks_after_accumulation,
    accumulation,
    accumulation_of_small_parameters,
)


def run() -> list[Row]:
    """All cases of this suite: forward and backward."""
    rows: list[Row] = []
    for case in CASES:
        forget()
        steps = {
            "eager": _step(case(), lambda net: net, nullcontext),
            "eager, captured": _step(case(), lambda net: net, framesmith.compile_backward),
            "framesmith": _step(case(), framesmith.compile, nullcontext),
            "framesmith, captured": _step(case(), framesmith.compile, framesmith.compile_backward),
        }
        found = compare(case.__name__, steps)
        print_rows(found)
        rows += found
    return rows


def _step(
    case: Case, compile: Callable[[nn.Module], Any], around: Callable[[], AbstractContextManager[Any]]
) -> Callable[[], object]:
    net, passes = case
    forward = compile(net)
    x = torch.randn(ROWS, WIDTH)

    def step() -> None:
        net.zero_grad()
        with around():
            for _ in range(passes):
                forward(x).square().mean().backward()

    return step

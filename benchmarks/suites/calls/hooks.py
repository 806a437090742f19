"""Training steps of a small model with hooks: of modules, forward and backward, of tensors, and with made leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.graph_counts import forget
from benchmarks.harness.timing import Row, compare, print_rows
from benchmarks.suites.calls.hook_programs import PROGRAMS, RAN, Program
from benchmarks.suites.calls.hook_programs import WIDTH as PROGRAM_WIDTH

WIDTH, ROWS, LAYERS = 64, 32, 4

Step = Callable[[torch.Tensor], torch.Tensor]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


def with_forward_hooks() -> Step:
    """A hook in front of each layer, and one behind it."""
    net = model()
    for layer in net:
        layer.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
        layer.register_forward_hook(lambda module, args, out: out + 1)
    return lambda x: net(x).sum()


def with_backward_hooks() -> Step:
    """Both kinds of backward hooks on each layer."""
    net = model()
    for layer in net:
        layer.register_full_backward_pre_hook(lambda module, gradients: None)
        layer.register_full_backward_hook(lambda module, gradients, outer: (gradients[0] * 0.5,))
    return lambda x: net(x).sum()


def with_tensor_hooks() -> Step:
    """A hook on what each layer gives, registered at each step."""
    net = model()

    def step(x: torch.Tensor) -> torch.Tensor:
        for layer in net:
            x = layer(x)
            x.register_hook(lambda gradient: gradient.clamp(-1, 1))
        return x.sum()

    return step


def with_kept_handles() -> Step:
    """A hook whose handle is kept, and its hook removed at the next step."""
    net = model()
    kept: list[Any] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        x = net(x)
        kept[:] = [x.register_hook(lambda gradient: gradient * 2)]
        return x.sum()

    return step


def with_leaves() -> Step:
    """A tensor that each step makes a leaf."""
    net = model()

    def step(x: torch.Tensor) -> torch.Tensor:
        made = x.detach() * 2
        made.requires_grad_()
        return net(made + x).sum()

    return step


CASES: tuple[Callable[[], Step], ...] = (
    with_forward_hooks,
    with_backward_hooks,
    with_tensor_hooks,
    with_kept_handles,
    with_leaves,
)


def run() -> list[Row]:
    """All cases of this suite: forward and backward."""
    rows: list[Row] = []
    for case in CASES:
        forget()
        steps = {name: _step(wrap(name, case())) for name in available()}
        found = compare(f"{case.__name__}, {LAYERS} layers, {ROWS} x {WIDTH}", steps)
        print_rows(found)
        rows += found
    for name, made in PROGRAMS.items():
        forget()  # programs share the code of their steps, which is compiled a limited number of times
        found = compare(name, {candidate: _program_step(candidate, made) for candidate in available()})
        print_rows(found)
        rows += found
    return rows


def _program_step(candidate: str, made: Program) -> Callable[[], object]:
    function, model = made()
    compiled = wrap(candidate, function)
    x = torch.randn(4, PROGRAM_WIDTH, requires_grad=True)

    def step() -> None:
        RAN.clear()
        x.grad = None
        model.zero_grad()
        result = compiled(x)
        (result[0] if isinstance(result, tuple) else result).backward()

    return step


def _step(function: Step) -> Callable[[], object]:
    x = torch.randn(ROWS, WIDTH, requires_grad=True)

    def step() -> None:
        x.grad = None
        function(x).backward()  # type: ignore[no-untyped-call]

    return step

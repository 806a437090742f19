"""What a call costs when the graph does next to nothing: dispatch and guards, eager backends on both sides."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.candidates import available, wrap
from benchmarks.harness import Row, compare, print_rows
from benchmarks.programs import add


class Layered(nn.Module):
    """`depth` linear layers of width 4, each with a float attribute that the guards must watch."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        for layer in self.layers:
            layer.scale = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * layer.scale
        return x


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = []
    x, y = torch.randn(8), torch.randn(8)
    for backend in ("eager", "default"):
        settings = {"backend": "eager"} if backend == "eager" else {}
        functions = {name: wrap(name, add, **({} if name == "eager" else settings)) for name in available()}
        steps = {name: (lambda fn=fn: fn(x, y)) for name, fn in functions.items()}
        rows += compare(f"x + y on 8 floats, backend {backend}", steps)
        print_rows(rows[-len(steps) :])
    for depth in (1, 12, 48, 200):
        rows += run_depth(depth)
    return rows


def run_depth(depth: int) -> list[Row]:
    """A module of `depth` layers, in inference, through the eager backend."""
    torch.manual_seed(0)
    model = Layered(depth)
    x = torch.randn(2, 4)
    steps = {}
    for name in available():
        fn = wrap(name, model, **({} if name == "eager" else {"backend": "eager"}))
        steps[name] = lambda fn=fn: run_without_grad(fn, x)
    rows = compare(f"{depth} layers of width 4, backend eager", steps)
    print_rows(rows)
    return rows


def run_without_grad(fn: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One inference call."""
    with torch.no_grad():
        return fn(x)

"""The time of a call whose graph does next to nothing: whole calls through eager backends, and dispatch alone."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.timing import Row, compare, print_rows
from benchmarks.models.programs import add
from benchmarks.suites.calls.dispatch import compare_dispatch

DEPTHS = (1, 12, 48, 200)


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
    rows += compare_dispatch("x + y on 8 floats", add, (x, y))
    for depth in DEPTHS:
        rows += run_depth(depth)
    return rows + run_layers_alone()


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


def run_layers_alone() -> list[Row]:
    """Dispatch alone for every depth, and what a layer adds to it."""
    x = torch.randn(2, 4)
    by_depth = {depth: compare_dispatch(f"{depth} layers of width 4", Layered(depth), (x,)) for depth in DEPTHS}
    slopes = growth(by_depth[48], by_depth[200], layers=152)
    print_rows(slopes)
    return [row for rows in by_depth.values() for row in rows] + slopes


def growth(small: list[Row], large: list[Row], *, layers: int) -> list[Row]:
    """Seconds that each of `layers` more layers adds, for every candidate."""
    seconds = {a.candidate: (b.seconds - a.seconds) / layers for a, b in zip(small, large, strict=True)}
    return [
        Row(
            f"growth per layer over {layers} layers, dispatch alone",
            name,
            own,
            {other: own / theirs for other, theirs in seconds.items() if other != name},
            large[0].rounds,
        )
        for name, own in seconds.items()
    ]


def run_without_grad(fn: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One inference call."""
    with torch.no_grad():
        return fn(x)

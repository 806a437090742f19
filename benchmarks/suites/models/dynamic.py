"""Sentences of changing lengths through a small transformer: what compiling for them costs, and the steady state.

Two layers, width 64, 26 lengths, batches of 8; inference, and training with the gradients of all weights. `framesmith`
is compared with torch.compile, and with graphs of our own that are compiled for each length (`dynamic=False`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness.candidates import available, fresh_inductor_cache, wrap
from benchmarks.harness.timing import Row, compare, in_fresh_process, print_rows

LENGTHS = range(7, 33)
BATCH, WIDTH = 8, 64
ROUNDS = 3


def encoder() -> torch.nn.Module:
    """The transformer, without dropout: its numbers would not be comparable."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def step(candidate: str, kind: str, **settings: Any) -> Callable[[torch.Tensor], Any]:
    """Run one batch."""
    model = encoder().train(kind == "training")
    run = wrap(candidate, model, **settings)

    def infer(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return run(x)

    def train(x: torch.Tensor) -> Any:
        model.zero_grad()
        run(x).square().mean().backward()

    return train if kind == "training" else infer


def sentences() -> list[torch.Tensor]:
    """One batch of each length, in an order that is always the same."""
    order = torch.randperm(len(LENGTHS), generator=torch.Generator().manual_seed(0)).tolist()
    return [torch.randn(BATCH, LENGTHS[at], WIDTH) for at in order]


def first_passes(candidate: str, kind: str) -> float:
    """Seconds of the first pass through all lengths in this process; imports are not counted."""
    fresh_inductor_cache()
    if candidate == "framesmith":
        import framesmith  # noqa: F401
    batches = sentences()
    do = step(candidate, kind)
    start = time.perf_counter()
    for batch in batches:
        do(batch)
    return time.perf_counter() - start


def cold(kind: str) -> list[Row]:
    """All lengths for the first time, in fresh processes."""
    times: dict[str, list[float]] = {name: [] for name in available()}
    for _ in range(ROUNDS):
        for name, mine in times.items():
            code = f"from benchmarks.suites.models.dynamic import first_passes; print(first_passes({name!r}, {kind!r}))"
            mine.append(float(in_fresh_process(code)))
    medians = {name: statistics.median(mine) for name, mine in times.items()}
    return [
        Row(
            f"26 lengths, first pass, {kind}",
            name,
            seconds,
            {o: seconds / t for o, t in medians.items() if o != name},
            ROUNDS,
        )
        for name, seconds in medians.items()
    ]


def steady(kind: str) -> list[Row]:
    """All lengths again and again."""
    batches = sentences()
    functions = {name: step(name, kind) for name in available()}
    functions["framesmith, each length"] = step("framesmith", kind, dynamic=False, recompile_limit=len(LENGTHS) + 1)

    def passes(do: Callable[[torch.Tensor], Any]) -> Callable[[], object]:
        return lambda: [do(batch) for batch in batches]

    return compare(f"26 lengths, {kind}", {name: passes(do) for name, do in functions.items()}, warmup=2)


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = []
    for kind in ("inference", "training"):
        for measure in (cold, steady):
            rows += (found := measure(kind))
            print_rows(found)
    return rows

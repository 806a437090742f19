"""A floor for each model: FLOPs over the best measured product, plus bytes of what must move over measured bandwidth.

Bytes are the inputs, parameters, buffers and the result, and in training the parameters' gradients. Intermediates
are not counted, so the floor is low for models whose intermediates exceed the caches.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness import Row, readable
from benchmarks.zoo import DTYPES, Model, build, make_step


def best_time(step: Callable[[], object], times: int = 8) -> float:
    """The shortest of several runs, after one that does not count."""
    step()
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        step()
        spent.append(time.perf_counter() - start)
    return min(spent)


@functools.cache
def peak(dtype: str) -> float:
    """FLOPs per second of the best large product: torch's own (MKL in float32) and oneDNN's linear."""
    a, b = (torch.randn(1024, 1024, dtype=DTYPES[dtype]) for _ in range(2))
    ways: list[Callable[[], object]] = [lambda: a @ b, lambda: torch.nn.functional.linear(a, b)]
    if torch.backends.mkldnn.is_available():
        # oneDNN's own product, packed weights not included
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    return float(2 * 1024**3 / min(best_time(way) for way in ways))


@functools.cache
def bandwidth() -> float:
    """Bytes per second of a copy far larger than the caches, read and written."""
    source = torch.randn(1 << 25)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_time(lambda: target.copy_(source))


def floor(row: Model, mode: str, dtype: str) -> float:
    """Seconds below which a step cannot go on this machine."""
    module, inputs = build(row, mode, dtype)
    step = make_step(row, mode, dtype, lambda made: made)
    with FlopCounterMode(display=False) as counter:
        out = step()
    weights = sum(p.nbytes for p in module.parameters())
    moved = weights * (2 if mode == "training" else 1) + sum(b.nbytes for b in module.buffers())
    moved += sum(x.nbytes for x in inputs.values()) + out.nbytes
    return counter.get_total_flops() / peak(dtype) + moved / bandwidth()


def print_floor(row: Model, mode: str, dtype: str, rows: list[Row]) -> None:
    """Each candidate's share of the floor, under its rows."""
    least = floor(row, mode, dtype)
    shares = "  ".join(f"{least / r.seconds:.0%} {r.candidate}" for r in rows if not r.reason)
    print(f"    floor {readable(least)}, reached: {shares}", flush=True)

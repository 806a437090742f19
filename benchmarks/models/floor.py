"""A floor for each model: FLOPs over the best measured matmul, plus bytes of what must move over measured bandwidth.

Bytes are the inputs, parameters, buffers and the result, in training the parameters' gradients, and of what matmuls,
convolutions and attention give, tensors that no cache holds: written and read once. What lies between these could stay
in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from benchmarks.harness.device import building, chosen, device_seconds
from benchmarks.harness.timing import Row, readable
from benchmarks.models.zoo import DTYPES, Model, build, make_step


def best_time(step: Callable[[], object], times: int = 8) -> float:
    """The shortest of several runs, after one that does not count."""
    step()
    return min(device_seconds(step) for _ in range(times))


@functools.cache
def peak(dtype: str) -> float:
    """FLOPs per second of the best large matmul: torch's own (MKL in float32) and oneDNN's linear."""
    side = 1024 if chosen() == "cpu" else 8192
    with building():
        a, b = (torch.randn(side, side, dtype=DTYPES[dtype]) for _ in range(2))
    ways: list[Callable[[], object]] = [lambda: a @ b, lambda: torch.nn.functional.linear(a, b)]
    if chosen() == "cpu" and torch.backends.mkldnn.is_available():
        # oneDNN's own matmul, packed weights not included
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    return float(2 * side**3 / min(best_time(way) for way in ways))


@functools.cache
def bandwidth() -> float:
    """Bytes per second of a copy far larger than the caches, read and written."""
    with building():
        source = torch.randn(1 << (25 if chosen() == "cpu" else 28))
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_time(lambda: target.copy_(source))


@functools.cache
def cache() -> int:
    """Bytes of the last cache before memory, as Linux and CUDA report them; elsewhere a usual size."""
    if chosen() == "cuda":
        return int(torch.cuda.get_device_properties().L2_cache_size)
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes), default=32 << 20)


class Intermediates(TorchDispatchMode):
    """Bytes of the results of operators with FLOPs that are larger than the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            results = out if isinstance(out, (tuple, list)) else (out,)
            sizes = [one.nbytes for one in results if isinstance(one, torch.Tensor)]
            self.bytes += sum(size for size in sizes if size > cache())
        return out


def floor(row: Model, mode: str, dtype: str) -> float:
    """Seconds below which a step cannot go on this machine."""
    module, inputs = build(row, mode, dtype)
    step = make_step(row, mode, dtype, lambda made: made)
    with FlopCounterMode(display=False) as counter, Intermediates() as between:
        out = step()
    weights = sum(p.nbytes for p in module.parameters())
    moved = weights * (2 if mode == "training" else 1) + sum(b.nbytes for b in module.buffers())
    moved += sum(x.nbytes for x in inputs.values()) + out.nbytes + 2 * between.bytes
    return counter.get_total_flops() / peak(dtype) + moved / bandwidth()


def print_shares(least: float, rows: list[Row]) -> None:
    """Each candidate's share of a floor, under its rows."""
    shares = "  ".join(f"{least / r.seconds:.0%} {r.candidate}" for r in rows if not r.reason)
    print(f"    floor {readable(least)}, reached: {shares}", flush=True)

"""The device that benchmarks run on, chosen once in a process: where inputs are made, and how its time is taken.

It is not torch's default device: with one, every call of torch goes through a mode, the timed ones as well.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

DEVICES = ("cpu", "cuda")

#: More cycles than any GPU's clock makes in a second: what is asked to wait a second waits at least that long.
CYCLES = 2_000_000_000


class _Choice:
    name = "cpu"


def choose(name: str) -> None:
    """Run on that device from here on; what has been made stays where it is."""
    if name not in DEVICES:
        raise ValueError(f"no device {name!r}; there are: {', '.join(DEVICES)}")
    _Choice.name = name


def chosen() -> str:
    """The name of the device."""
    return _Choice.name


def building() -> contextlib.AbstractContextManager[Any]:
    """Within it, torch makes new tensors on the device. Nothing is timed in it."""
    import torch

    return contextlib.nullcontext() if chosen() == "cpu" else torch.device(chosen())


def synchronize() -> None:
    """Wait until the device has done what it was asked for."""
    if chosen() == "cuda":
        import torch

        torch.cuda.synchronize()


def device_seconds(step: Callable[[], object], count: int = 1) -> float:
    """Seconds that the device takes for a step, on average over `count` of them one after another.

    A GPU is kept waiting while the steps are sent to it, so that only its own work lies between the two events.
    """
    if chosen() == "cpu":
        start = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - start) / count
    import torch

    synchronize()
    start = time.perf_counter()
    step()
    sending = (time.perf_counter() - start) * count
    synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(int(CYCLES * min(0.02, 2 * sending + 1e-4)))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(count):
        step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / count

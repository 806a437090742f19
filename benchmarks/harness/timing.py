"""Interleaved timing: every round runs each candidate in turn, and ratios are taken within a round.

A machine's speed drifts between rounds and hardly within one, so the median of per-round ratios is what is reported.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.harness.device import chosen, synchronize

Step = Callable[[], object]

#: Seconds between two candidates, in which the waiting threads of the first one's OpenMP pool go to sleep. (Inductor's
#: kernels have a pool of their own, whose threads would spin on the other one's processors.)
REST = 0.02


@dataclass(frozen=True)
class Row:
    """One candidate in one case: median seconds per step, and the median per-round ratio to each other candidate."""

    case: str
    candidate: str
    seconds: float
    ratio_to: dict[str, float]
    rounds: int
    reason: str = ""  # why the candidate cannot run the case
    figures: dict[str, int] = field(default_factory=dict)


def in_fresh_process(code: str) -> str:
    """The last line that the program prints in an interpreter of its own.

    Python keeps what it makes of source files there, as it does of an installed package: without, each process would
    translate an editable checkout again, and a first call would be measured with that in it.

    Raises:
        RuntimeError: The program failed; the end of what it said.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout.splitlines()[-1]


def iterations_for(step: Step, target: float) -> int:
    """Return the number of steps that fill about `target` seconds; runs the step a few times to find out."""
    count = 1
    while True:
        start = time.perf_counter()
        for _ in range(count):
            step()
        synchronize()
        spent = time.perf_counter() - start
        if spent > target / 4 or count >= 1_000_000:
            return max(1, int(count * target / max(spent, 1e-9)))
        count *= 4


def time_steps(step: Step, count: int) -> float:
    """Seconds per step over `count` steps."""
    synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    synchronize()
    return (time.perf_counter() - start) / count


def compare(
    case: str,
    candidates: Mapping[str, Step],
    *,
    rounds: int = 15,
    target: float = 0.05,
    warmup: int = 3,
    timer: Callable[[Step, int], float] = time_steps,
) -> list[Row]:
    """Time all candidates of a case. Steps must do the same work, on inputs of their own or such that stay the same."""
    for step in candidates.values():
        for _ in range(warmup):
            step()
    counts = {name: iterations_for(step, target) for name, step in candidates.items()}
    timers = {name: functools.partial(timer, step, counts[name]) for name, step in candidates.items()}
    return interleaved(case, timers, rounds)


def interleaved(case: str, timers: Mapping[str, Callable[[], float]], rounds: int) -> list[Row]:
    """Ask all candidates in turn how many seconds a step takes."""
    rest = REST if chosen() == "cpu" else 0.0
    times: dict[str, list[float]] = {name: [] for name in timers}
    order = list(timers)
    for turn in range(rounds):
        shift = turn % len(order)
        turned = order[shift:] + order[:shift]
        for name in reversed(turned) if turn % 2 else turned:  # nobody always comes behind the same one
            time.sleep(rest)
            times[name].append(timers[name]())
    return [Row(case, name, statistics.median(mine), ratios(mine, times, name), rounds) for name, mine in times.items()]


def ratios(mine: list[float], times: Mapping[str, list[float]], name: str) -> dict[str, float]:
    """Median per-round ratio of this candidate's time to every other's; below 1 is faster."""
    return {
        other: statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        for other, theirs in times.items()
        if other != name
    }


def geometric_mean(numbers: Sequence[float]) -> float:
    """The mean that ratios have."""
    return math.exp(statistics.fmean(math.log(number) for number in numbers))


def readable(seconds: float) -> str:
    """A time with a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def print_rows(rows: list[Row]) -> None:
    """A table of a case."""
    for row in rows:
        if row.reason:
            print(f"{row.case:<52} {row.candidate:<14} cannot: {row.reason}", flush=True)
            continue
        others = "  ".join(f"{ratio:.3f}x {other}" for other, ratio in row.ratio_to.items())
        print(f"{row.case:<52} {row.candidate:<14} {readable(row.seconds):>10}  {others}", flush=True)


def machine() -> dict[str, object]:
    """Versions and processor, for the results file."""
    import torch

    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu": model,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def write_json(path: Path, suite: str, rows: list[Row]) -> None:
    """Write a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"suite": suite, "machine": machine(), "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n")

"""The cost table of matmuls: the time of each provider for each class, measured once for the machine, stored on disk.

A class is the layouts of the operands, their sizes to the nearest power of two, whether there is a bias, and the number
of threads. The file's name holds the processor and the versions. Times measured while something else ran are stored in
a file of their own, and measured again by the next processes; after some of those, the best of them are used.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_backends import storage
from framesmith_backends.__about__ import __version__
from framesmith_backends.torch_adapter import mkldnn, unstable

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], object]

#: The time that another provider must save to be used, of ATen's time and in seconds: it is called from Python, between
#: two runs of kernels. (On a Zen 4: 8 us; oneDNN saves 7 to 10% of matmuls of 128 rows and more, nothing below.)
WORTHWHILE = 0.03
CALL_SECONDS = 1e-5
#: The same part of ATen's time where the machine was too busy for exact times; only this process uses them.
WORTHWHILE_IF_BUSY = 0.25
#: The most multiplications that are measured; larger matmuls get fewer rows. (With a quarter of it, a Zen 4's libraries
#: are equal where at full size one is 9% faster.)
LARGEST_TRIAL = 1 << 26
#: On a quiet machine, the largest ratio of a provider's median run to its fastest, and the most preemptions: threads
#: that wait for each other may take the same few time slices in every run.
STEADY = 1.5
MOST_PREEMPTIONS = 2.0
#: The number of processes that measure a class on a busy machine before the best times of all of them are used.
MOST_BUSY = 3
#: The most rows of matmuls that the native kernel is measured for: beyond, libraries are within 5% of it, and its
#: compilation, 0.2 s once for the machine, would be part of a program's first call.
MOST_ROWS_OF_NATIVE = 32
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class MatmulClass:
    """`layouts`: for each operand n (contiguous) or t (the transposed view of one)."""

    layouts: str
    m: int
    n: int
    k: int
    biased: bool
    threads: int

    @property
    def key(self) -> str:
        return f"f32 {self.layouts} {self.m}x{self.k}x{self.n}{' bias' if self.biased else ''} threads {self.threads}"


def class_of(layouts: str, m: int, n: int, k: int, biased: bool) -> MatmulClass:
    return MatmulClass(layouts, _rounded(m), _rounded(n), _rounded(k), biased, torch.get_num_threads())


def _rounded(size: int) -> int:
    """The nearest power of two, by ratio."""
    below = 1 << max(size, 1).bit_length() - 1
    return below if size * size <= 2 * below * below else 2 * below


def _by_aten(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> object:
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def _by_onednn(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> object:
    return mkldnn._linear_pointwise.default(a, b.t(), bias, "none", [], "")


def _by_native(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> object:
    from framesmith_backends.native_ops.matmul.operator import OPERATOR

    return OPERATOR(a, b, bias)


PROVIDERS: dict[str, Multiply] = {"aten": _by_aten, "onednn": _by_onednn, "native": _by_native}


def why_not(provider: str) -> str | None:
    """Why this provider cannot be used here, or None."""
    if provider == "onednn":
        available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return "this torch has no oneDNN"
    if provider == "native" and importlib.util.find_spec("llvmlite") is None:
        return "llvmlite is not installed"
    return None


def candidates(one: MatmulClass) -> list[str]:
    """The providers that are tried for a class of matmuls."""
    few_rows = one.m <= MOST_ROWS_OF_NATIVE
    return [name for name in PROVIDERS if (few_rows or name != "native") and why_not(name) is None]


class CostTable:
    """Seconds of each provider for each class that was asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seconds: dict[str, dict[str, float]] = _loaded(file_name())
        #: The times that this process uses of classes that were never measured on a quiet machine.
        self.of_busy = {key: row for key, (row, times) in _loaded_busy().items() if times >= MOST_BUSY}

    def fastest(self, one: MatmulClass) -> str:
        """The provider to use; measured now if it never was."""
        with self.lock:
            found = self.seconds.get(one.key) or self.of_busy.get(one.key)
            if found is None or found.keys() != set(candidates(one)):
                found, quiet = measured(one)
                if quiet:
                    self.seconds[one.key] = found
                    self.of_busy.pop(one.key, None)
                    # Another process may have written since.
                    self.seconds = {**_loaded(file_name()), **self.seconds}
                    storage.write(file_name(), json.dumps(self.seconds, indent=1, sort_keys=True).encode())
                else:
                    found = self.of_busy[one.key] = _stored_busy(one.key, found)
            least = WORTHWHILE_IF_BUSY if one.key in self.of_busy else WORTHWHILE
        best = min(found, key=lambda provider: found[provider])
        return best if found["aten"] - found[best] > max(least * found["aten"], CALL_SECONDS) else "aten"


@functools.cache
def cost_table() -> CostTable:
    return CostTable()


@functools.cache
def file_name() -> str:
    """The table's file for this processor and these versions."""
    parts = [torch.__version__, __version__, platform.machine(), platform.processor(), _processor()]
    return f"matmuls-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.json"


def busy_file_name() -> str:
    """The file of times measured while something else ran."""
    return file_name().replace("matmuls-", "matmuls-busy-")


def _stored_busy(key: str, row: dict[str, float]) -> dict[str, float]:
    """Store a row measured on a busy machine; returns the best times of all processes."""
    rows = _loaded_busy()
    before, times = rows.get(key, ({}, 0))
    best = {provider: min(seconds, before.get(provider, seconds)) for provider, seconds in row.items()}
    rows[key] = best, times + 1
    content = {name: {"seconds": seconds, "processes": count} for name, (seconds, count) in rows.items()}
    storage.write(busy_file_name(), json.dumps(content, indent=1, sort_keys=True).encode())
    return best


def _loaded_busy() -> dict[str, tuple[dict[str, float], int]]:
    """The best seconds of each class, and the number of processes that measured it."""
    found: dict[str, tuple[dict[str, float], int]] = {}
    for key, row in _content(busy_file_name()).items():
        seconds, times = (row.get("seconds"), row.get("processes")) if isinstance(row, dict) else (None, None)
        if isinstance(seconds, dict) and _is_row(seconds) and type(times) is int:
            found[key] = seconds, times
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            wanted = ("model name", "model\t", "cpu family", "cache size", "flags", "CPU part")
            first = file.read().split("\n\n", 1)[0].splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in first if line.startswith(wanted))


def _loaded(name: str) -> dict[str, dict[str, float]]:
    return {key: row for key, row in _content(name).items() if isinstance(row, dict) and _is_row(row)}


def _content(name: str) -> dict[str, Any]:
    """The table in the file; empty if there is none."""
    content = storage.read(name)
    try:
        found = None if content is None else json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_row(row: dict[str, object]) -> bool:
    """Whether these are seconds of providers, ATen among them."""
    return (
        "aten" in row and row.keys() <= PROVIDERS.keys() and all(isinstance(v, float) and v > 0 for v in row.values())
    )


def measured(one: MatmulClass) -> tuple[dict[str, float], bool]:
    """Seconds of each provider, interleaved, the best of several runs; and whether nothing disturbed them."""
    m = max(min(one.m, LARGEST_TRIAL // (one.n * one.k)), min(one.m, 64))
    before = preemptions()
    times = _timed(one, m)
    steady = all(sorted(runs)[len(runs) // 2] <= STEADY * min(runs) for runs in times.values())
    seconds = {name: min(runs) * one.m / m for name, runs in times.items()}
    return seconds, steady and preemptions() - before <= MOST_PREEMPTIONS


def preemptions() -> int:
    """The number of involuntary context switches of this process; 0 on systems that do not count them."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _timed(one: MatmulClass, m: int) -> dict[str, list[float]]:
    """Seconds of each run with m rows, but for the first one, which may set something up."""
    usable = {name: PROVIDERS[name] for name in candidates(one)}
    times: dict[str, list[float]] = {name: [] for name in usable}
    # The graph may be compiled under a mode of fake tensors.
    with unstable.disable_current_modes(), torch.no_grad():
        a, b = _ones(m, one.k, one.layouts[0]), _ones(one.k, one.n, one.layouts[1])
        bias = torch.ones(one.n, dtype=torch.float32, device="cpu") if one.biased else None
        for turn in range(ROUNDS + 1):
            for name, call in usable.items():
                start = time.perf_counter()
                call(a, b, bias)
                if turn:
                    times[name].append(time.perf_counter() - start)
    return times


def _ones(rows: int, columns: int, layout: str) -> torch.Tensor:
    shape = (rows, columns) if layout == "n" else (columns, rows)
    found = torch.ones(shape, dtype=torch.float32, device="cpu")
    return found if layout == "n" else found.t()

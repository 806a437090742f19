"""Providers of float32 matmuls on the CPU: ATen's library, oneDNN and the native kernel, timed for classes of matmuls.

A class is the layouts of the operands, their sizes to the nearest power of two, whether there is a bias, and the number
of threads.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch.fx.node import Argument

from framesmith_backends.__about__ import __version__
from framesmith_backends.autotune import autotuner
from framesmith_backends.autotune.autotuner import Timing
from framesmith_backends.rewrite.replacing import Copies
from framesmith_backends.torch_adapter import mkldnn, unstable
from framesmith_guards.torch_adapter import aten

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], object]

#: Another provider is used if its time is less than this part of ATen's, and so many seconds less: it is called from
#: Python, between two runs of kernels. (On a Zen 4: 8 us; oneDNN saves 7 to 10% of matmuls of 128 rows and more.)
MARGIN, CALL_SECONDS = 0.97, 1e-5
#: The same part of ATen's time where the machine was too busy for exact times.
MARGIN_IF_BUSY = 0.75
#: The most multiplications that are measured; larger matmuls get fewer rows. (With a quarter of it, a Zen 4's libraries
#: are equal where at full size one is 9% faster.)
LARGEST_TRIAL = 1 << 26
#: On a quiet machine, the largest ratio of a provider's median run to its fastest, and the most preemptions: threads
#: that wait for each other may take the same few time slices in every run.
STEADY = 1.5
MOST_PREEMPTIONS = 2.0
#: The most rows of matmuls that the native kernel is measured for: beyond, libraries are within 5% of it, and its
#: compilation, 0.2 s once for the machine, would be part of a program's first call.
MOST_ROWS_OF_NATIVE = 32
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class MatmulMatch:
    """bias + a @ b; `weight` is b's matrix before it was transposed, if it was."""

    layouts: str
    a: fx.Node
    b: fx.Node
    weight: fx.Node | None
    bias: fx.Node | None


Write = Callable[[fx.Graph, MatmulMatch, Copies], fx.Node]


@dataclass(frozen=True, slots=True)
class Provider:
    """`run` multiplies tensors, `write` makes a call in a graph instead of ATen's; `why_not`: why not here, or None."""

    run: Multiply
    write: Write | None = None
    why_not: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, slots=True)
class MatmulClass:
    """`layouts`: for each operand n (contiguous) or t (the transposed view of one)."""

    layouts: str
    m: int
    n: int
    k: int
    biased: bool
    threads: int
    baseline: ClassVar[str] = "aten"

    @property
    def others(self) -> tuple[str, ...]:
        """The providers that are tried beside ATen."""
        few_rows = self.m <= MOST_ROWS_OF_NATIVE
        names = [name for name in PROVIDERS if name != self.baseline and (few_rows or name != "native")]
        return tuple(name for name in names if PROVIDERS[name].why_not() is None)

    @property
    def key(self) -> str:
        """The digest of all that the times depend on, the processor and the versions among it."""
        return autotuner.key_of("cpu", self, self.others, _about())


def class_of(layouts: str, m: int, n: int, k: int, biased: bool) -> MatmulClass:
    return MatmulClass(layouts, _rounded(m), _rounded(n), _rounded(k), biased, torch.get_num_threads())


def _rounded(size: int) -> int:
    """The nearest power of two, by ratio."""
    below = 1 << max(size, 1).bit_length() - 1
    return below if size * size <= 2 * below * below else 2 * below


def _by_native(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> object:
    from framesmith_backends.native_ops.matmul.operator import OPERATOR

    return OPERATOR(a, b, bias)


def _write_onednn(graph: fx.Graph, match: MatmulMatch, copies: Copies) -> fx.Node:
    """oneDNN's call, which takes the transpose of the second operand."""
    if match.weight is not None:
        weight = copies[match.weight]
    else:
        weight = graph.call_function(aten.permute.default, (copies[match.b], [1, 0]))
        weight.meta["val"] = match.b.meta["val"].t()
    bias = None if match.bias is None else copies[match.bias]
    args: tuple[Argument, ...] = (copies[match.a], weight, bias, "none", [], "")
    return graph.call_function(mkldnn._linear_pointwise.default, args)


def _write_native(graph: fx.Graph, match: MatmulMatch, copies: Copies) -> fx.Node:
    """The native operator, which takes operands of any strides."""
    from framesmith_backends.native_ops.matmul.operator import OPERATOR

    bias = None if match.bias is None else copies[match.bias]
    return graph.call_function(OPERATOR, (copies[match.a], copies[match.b], bias))


def _why_no_onednn() -> str | None:
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return None if available and hasattr(torch.ops.mkldnn, "_linear_pointwise") else "this torch has no oneDNN"


#: Providers by their names, as the option `matmul` has them.
PROVIDERS = {
    "aten": Provider(lambda a, b, bias: torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)),
    "onednn": Provider(
        lambda a, b, bias: mkldnn._linear_pointwise.default(a, b.t(), bias, "none", [], ""),
        _write_onednn, _why_no_onednn,
    ),
    "native": Provider(
        _by_native, _write_native,
        lambda: None if importlib.util.find_spec("llvmlite") else "llvmlite is not installed",
    ),
}  # fmt: skip


def fastest(one: MatmulClass) -> str:
    """The provider to use; timed now if the class never was."""
    known = autotuner.autotuner("cpu").timings({one.key: one}, lambda missing: [measured(each) for each in missing])
    timing = known[one.key]
    margin = MARGIN_IF_BUSY if timing.busy else MARGIN
    return autotuner.fastest(timing.times, one, margin, CALL_SECONDS) or one.baseline


@functools.cache
def _about() -> tuple[str, ...]:
    return torch.__version__, __version__, platform.machine(), platform.processor(), _processor()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            wanted = ("model name", "model\t", "cpu family", "cache size", "flags", "CPU part")
            first = file.read().split("\n\n", 1)[0].splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in first if line.startswith(wanted))


def measured(one: MatmulClass) -> Timing:
    """Seconds of each provider, interleaved, the best of several runs."""
    m = max(min(one.m, LARGEST_TRIAL // (one.n * one.k)), min(one.m, 64))
    before = preemptions()
    times = _timed(one, m)
    steady = all(sorted(runs)[len(runs) // 2] <= STEADY * min(runs) for runs in times.values())
    quiet = steady and preemptions() - before <= MOST_PREEMPTIONS
    return Timing({name: min(runs) * one.m / m for name, runs in times.items()}, int(not quiet))


def preemptions() -> int:
    """The number of involuntary context switches of this process; 0 on systems that do not count them."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _timed(one: MatmulClass, m: int) -> dict[str, list[float]]:
    """Seconds of each run with m rows, but for the first one, which may set something up."""
    usable = {name: PROVIDERS[name].run for name in (one.baseline, *one.others)}
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

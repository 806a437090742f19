"""Kernels that memory bounds, at sizes that fill a large GPU: 100 to 600 MB go through each, many times its caches.

The device's own time is measured, and reported as a share of the bandwidth that a copy reaches there. Compiling is
shared among processes, timing is not. On a CPU the same cases are 64 times smaller.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.harness.candidates import settings_of, wrap
from benchmarks.harness.device import chosen, device_seconds, synchronize
from benchmarks.harness.registry import matching
from benchmarks.harness.summary import SHARE, kernels_table
from benchmarks.harness.timing import Row, Step, compare
from benchmarks.harness.workers import Job, Limits, share
from benchmarks.kernel_cases import indexing, layout, pointwise, reductions, rows, updates
from benchmarks.kernel_cases.case import Case, Inputs, Make, group, normal, words
from benchmarks.models.floor import bandwidth
from benchmarks.models.programs import pointwise as gelu_sin_sigmoid
from benchmarks.models.programs import softmax_rows
from benchmarks.models.selection import Selection
from benchmarks.suites.kernels import kernels

#: The divisor of leading sizes.
DIVISORS = {"cpu": 64, "cuda": 1}
ROUNDS, TARGET = 15, 0.004
#: As in `gpu_models`; what replaying saves is not the device's own time.
CANDIDATES = ("eager", "framesmith", "torch.compile")


def indices(lines: int, width: int, many: int) -> Make:
    """A matrix and, for each of its rows, indices in it."""
    return lambda dtype: (torch.randn(lines, width).to(dtype), torch.randint(0, width, (lines, many)))


def indices_and_values(lines: int, width: int, many: int) -> Make:
    """The same, and what goes there."""

    def make(dtype: torch.dtype) -> Inputs:
        return *indices(lines, width, many)(dtype), torch.randn(lines, many).to(dtype)

    return make


def scores_and_targets(lines: int, classes: int) -> Make:
    """Of each line a score for each class, and its class."""
    return lambda dtype: (torch.randn(lines, classes).to(dtype), torch.randint(0, classes, (lines,)))


def cases(divisor: int) -> tuple[Case, ...]:
    """All cases, the leading sizes divided by a number up to 64."""
    flat = ((1 << 25) // divisor,)
    matrix, wide = (16384 // divisor, 2048), (16384 // divisor, 4096)
    weights = (2048,), (2048,)
    pixels = (64 // divisor, 64, 128, 128)
    heads = ((64 // divisor, 2048, 128),) * 2
    scores = scores_and_targets(4096 // divisor, 32000)
    table = words((131072 // divisor, 512), (65536 // divisor,))
    shapes = ([(1024, 1024)] * 8 + [(1024,)] * 32 + [(4096, 1024)]) if divisor == 1 else updates.SHAPES
    channels = (64,), (64,)
    return group(
        "large",
        Case("gelu_sin_sigmoid", gelu_sin_sigmoid, normal(flat, flat)),
        Case("softmax", softmax_rows, normal(matrix)),
        Case("layer_norm", rows.layer_norm, normal(matrix, *weights)),
        Case("layer_norm_backward", rows.layer_norm, normal(matrix, *weights), backward=True, scale=200),
        Case("rms_norm", rows.rms_norm, normal(matrix, (2048,))),
        Case("rms_norm_backward", rows.rms_norm, normal(matrix, (2048,)), backward=True, scale=200),
        Case("cross_entropy", rows.cross_entropy, scores),
        Case("cross_entropy_backward", rows.cross_entropy, scores, backward=True),
        Case("bias_gelu", pointwise.bias_gelu, normal(wide, (4096,))),
        Case("bias_gelu_backward", pointwise.bias_gelu, normal(matrix, (2048,)), backward=True, scale=200),
        Case("row_sums", reductions.row_sums, normal(wide), scale=100),
        Case("column_sums", reductions.column_sums, normal(wide), scale=200),
        Case("total", reductions.total, normal((2 * flat[0],)), scale=10000),
        Case("adam", updates.adam, updates.lists(shapes)),
        Case("transpose_and_add", layout.transpose_and_add, normal((8192 // divisor, 4096), (4096, 8192 // divisor))),
        Case("embedding", indexing.embedding, table),
        Case("embedding_backward", indexing.embedding, table, backward=True, scale=10),
        Case("gated", pointwise.gated, normal(flat, flat)),
        Case("gated_backward", pointwise.gated, normal((flat[0] // 2,), (flat[0] // 2,)), backward=True),
        Case("softmax_long", softmax_rows, normal((512 // divisor, 65536))),
        Case("softmax_short", softmax_rows, normal(((1 << 21) // divisor, 16))),
        Case("softmax_columns", rows.softmax_columns, normal((4096 // divisor, 8192))),
        Case("softmax_backward", softmax_rows, normal(matrix), backward=True),
        Case("added_layer_norm", rows.added_layer_norm, normal(matrix, matrix, *weights)),
        Case("dropout", pointwise.dropout, normal(flat), random=True),
        Case("batch_norm", rows.batch_norm, normal(pixels, *channels)),
        Case("batch_norm_backward", rows.batch_norm, normal(pixels, *channels), backward=True, scale=1000),
        Case("group_norm", rows.group_norm, normal(pixels, *channels)),
        Case("group_norm_backward", rows.group_norm, normal(pixels, *channels), backward=True, scale=1000),
        Case("max_pool", layout.max_pool, normal(pixels)),
        Case("max_pool_backward", layout.max_pool, normal(pixels), backward=True),
        Case("rotary", layout.rotary, normal(*heads, (2048, 128), (2048, 128))),
        Case("flex_attention", rows.flex_causal, normal(*[(64 // divisor, 16, 1024, 64)] * 3)),
        Case("argmax_rows", reductions.argmax_rows, normal(wide)),
        Case("cumsum", reductions.cumsum, normal(matrix), scale=100),
        Case("cat", layout.cat, normal(matrix, matrix)),
        Case("gather", indexing.gather, indices(16384 // divisor, 1024, 1024)),
        Case("scatter_add", indexing.scatter_add, indices_and_values(16384 // divisor, 1024, 1024)),
        Case("adam_at_once", updates.adam_at_once, updates.lists(shapes)),
    )


@dataclass
class Measured:
    """A case in a worker. Candidates are checked on inputs of their own, and timed on the same: memory has an end."""

    case: Case
    dtype: str
    rounds: int
    moved: int = 0
    inputs: Inputs = ()

    def prepare(self, name: str) -> tuple[Step, float]:
        """Compiled, and its results compared."""
        call = wrap(name, self.case.fn, **settings_of(name, **({} if name == "eager" else {"fullgraph": True})))
        inputs = kernels.inputs_of(self.case, self.dtype)
        step = kernels.make_step(self.case, call, inputs)
        start = time.perf_counter()
        results = step()
        synchronize()
        first = time.perf_counter() - start
        kernels.check_results(self.case, self.dtype, results, inputs)
        if not self.inputs:
            self.moved = kernels.bytes_moved(self.case, self.dtype)
            self.inputs = kernels.inputs_of(self.case, self.dtype)
        return kernels.make_step(self.case, call, self.inputs), first

    def release(self) -> None:
        """Give the device back what only the checks took."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def measure(self, steps: dict[str, Step]) -> list[Row]:
        """Rows with the share of what a copy reaches."""
        least = self.moved / bandwidth()
        title = kernels.title(self.case, self.dtype)
        found = compare(title, steps, rounds=self.rounds, target=TARGET, timer=device_seconds)
        self.inputs = ()
        return [replace(row, figures={SHARE: round(100 * least / row.seconds)}) for row in found]


def jobs(asked: dict[str, Any]) -> list[Job]:
    """A worker's view of what was asked for: all cases in bfloat16, then in float32."""
    selection = Selection(**asked)
    found = []
    for dtype in ("bfloat16", "float32"):
        for case in matching(cases(DIVISORS[chosen()]), selection.only, "kernel") if dtype in selection.dtypes else ():
            mine = Measured(case, dtype, selection.rounds_or(ROUNDS))
            names = tuple(selection.among(CANDIDATES))
            found.append(Job(kernels.title(case, dtype), names, mine.prepare, mine.measure, mine.release))
    return found


def run(selection: Selection | None = None, limits: Limits | None = None) -> list[Row]:
    """All cases that the limits leave time for."""
    selection = selection or Selection()
    found = share(__name__, selection.asked(), limits or Limits(6, 60.0, 120.0), selection.keep)
    print("\n".join(kernels_table(found)), flush=True)
    return found

"""Samples through the cuda backend on CPU tensors.

With the argument "checks", indices that are out of range.
With "row_column", what reduces rows and columns in one kernel, rows taken one by one and several at a time.
With "symbolic", programs of test_symbolic.py at one size after another, in small blocks: several of
them to a row, several launches to a grid. Of samples a third, of programs a sixth, of cases an eighth; in long runs,
`FRAMESMITH_LONG=1`, all.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from case_selection.sweeps import CASES_PART, LONG, PROGRAMS_PART, a_part
from graphs.tracing import trace
from sample_programs.row_column import CASES
from sample_programs.samples import interpreted_samples
from test_symbolic import PROGRAMS, compilations
from torch import Tensor

from framesmith_backends import CudaBackend, cuda
from framesmith_backends.launch.cuda import kernel_runs
from framesmith_backends.render.triton import tile_rules
from framesmith_backends.target import GPU

#: The first as traced, then what is met later: empty, single, odd, a multiple of the block, several blocks.
SIZES = ((3, 5), (4, 7), (0, 5), (1, 6), (8, 16), (5, 35))
if LONG:
    SIZES += ((5, 0), (6, 1), (1, 1), (2, 2), (19, 3), (20, 50))

#: Rows by columns: one at a time, the last lanes masked; several at a time, which they are a multiple of.
ROWS = ((8, 1100, torch.float32), (48, 96, torch.float32))
HALF = (512, 64, torch.bfloat16)


def symbolic() -> int:
    """The programs at all sizes; the number of those that fail."""
    tile_rules.LEAST_BLOCK, tile_rules.WHOLE_ROW, tile_rules.ROW_BLOCK, tile_rules.LANE_BLOCK = 4, 16, 16, 64
    tile_rules.LARGEST_BLOCK = 16
    tile_rules.LONGER_ROWS.clear()
    kernel_runs.MOST_PROGRAMS = 3
    failures = 0
    for program in a_part(PROGRAMS, PROGRAMS_PART):
        try:
            assert 1 <= compilations(program, CudaBackend(), SIZES) <= program.compilations
            print("ok", program.name, flush=True)
        except Exception:
            failures += 1
            print("FAILED", program.name)
            traceback.print_exc(file=sys.stdout, limit=-4)
    return failures


#: Programs, the sizes of their inputs, indices in range, and indices out of range.
CHECKED: dict[str, tuple[Callable[[Tensor, Tensor], object], tuple[int, ...], list[int], list[int]]] = {
    "take": (lambda x, i: x.take(i) * 2, (1,), [0, -1], [0, 1]),
    "unread": (lambda x, i: (x.take(i), x)[1] + 1, (1,), [0, 0], [0, 1]),
    "rows": (lambda x, i: x[i].sum(1), (5, 700), [4, -5, 2], [4, 5, 2]),
    "embedding": (lambda x, i: F.embedding(i, x).sin(), (5, 40), [4, 0], [-1, 0]),
}


def checks() -> int:
    """Return the number of programs that compute wrong results, or raise no error for indices out of range."""
    failures = 0
    for name, (function, sizes, fine, wrong) in CHECKED.items():
        x, indices, beyond = torch.randn(sizes), torch.tensor(fine), torch.tensor(wrong)
        call = CudaBackend().compile(trace(function, [x, indices]), [x, indices])
        torch.testing.assert_close(call([x, indices])[0], function(x, indices))
        try:
            call([x, beyond])
            print("FAILED", name)
            failures += 1
        except IndexError as error:
            print("ok", name, error)
    return failures


def row_column() -> int:
    """Rows and columns of some shapes, in few parts; the number of cases that fail."""
    cuda.GPU = replace(GPU, row_column=replace(GPU.row_column, parts=4, least=2, least_rows=2))
    failures = 0
    attempts = a_part(
        [(case, *ROWS[number % 4 != 0]) for number, case in enumerate(CASES)] + [(CASES[0], *HALF)], CASES_PART
    )
    if LONG:
        attempts = [(case, *sizes) for case in CASES for sizes in ROWS] + [(case, *HALF) for case in CASES[:3]]
    for case, rows, columns, dtype in attempts:
        inputs = case.inputs(rows, columns, dtype)
        wanted = case.function(*(t.double() for t in inputs))
        gm = trace(case.function, inputs)
        try:
            assert sum("tl.range(" in kernel.source for kernel in CudaBackend().explain(gm).kernels) == 1
            for one, other in zip(CudaBackend().compile(gm, inputs)(list(inputs)), wanted, strict=True):
                tolerance = 1e-4 if dtype == torch.float32 else 0.02
                scale = tolerance * float(other.abs().max())
                torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=scale)
            print("ok", case.function.__name__, rows, columns, flush=True)
        except Exception:
            failures += 1
            print("FAILED", case.function.__name__, rows, columns)
            traceback.print_exc(file=sys.stdout, limit=-4)
    return failures


def main() -> int:
    failures = 0
    for sample in interpreted_samples():
        inputs = sample.inputs(interpreted=True)
        wanted = sample.function(*inputs)
        wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
        try:
            found = CudaBackend().compile(trace(sample.function, inputs), inputs)(list(inputs))
            for one, other in zip(found, wanted):
                assert (one.dtype, one.stride()) == (other.dtype, other.stride())
                tolerance = max(sample.tolerance, 2e-5)
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
            print("ok", sample.name)
        except Exception:
            failures += 1
            print("FAILED", sample.name)
            traceback.print_exc(file=sys.stdout, limit=-4)
    return failures


if __name__ == "__main__":
    kinds = {"": main, "checks": checks, "symbolic": symbolic, "row_column": row_column}
    sys.exit(kinds["".join(sys.argv[1:])]())

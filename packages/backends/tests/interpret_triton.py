"""Run by test_cuda.py with TRITON_INTERPRET=1: every sample through the cuda backend on CPU tensors.

With the argument "symbolic", every program of test_symbolic.py at one size after another, in small blocks: several of
them to a row, several launches to a grid.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from samples import SAMPLES
from test_symbolic import PROGRAMS, Program, compare, eager
from tracing import trace
from tracing_symbolic import takes, trace_symbolic

from framesmith_backends import CudaBackend
from framesmith_backends.launch import triton_jit
from framesmith_backends.render.triton import kernel

#: The first as traced, then what is met later: empty, single, odd, a multiple of the block, several blocks.
SIZES = ((3, 5), (4, 7), (0, 5), (5, 0), (1, 6), (6, 1), (1, 1), (2, 2), (8, 16), (5, 35), (19, 3))


def symbolic() -> int:
    """The programs at all sizes; the number of those that fail."""
    kernel.LEAST_BLOCK, kernel.WHOLE_ROW, kernel.ROW_BLOCK, kernel.LANE_BLOCK = 4, 16, 16, 16
    triton_jit.MOST_PROGRAMS = 5
    failures = 0
    for program in PROGRAMS:
        try:
            compilations = at_all_sizes(program)
            assert compilations <= program.compilations
            print("ok", program.name, flush=True)
        except Exception:
            failures += 1
            print("FAILED", program.name)
            traceback.print_exc(file=sys.stdout, limit=-4)
    return failures


def at_all_sizes(program: Program) -> int:
    """Compare with eager at every size that the program has; the number of graphs that took."""
    compiled: list[tuple[Any, Callable[..., Any]]] = []
    for a, b in SIZES:
        torch.manual_seed(a + b)
        inputs = program.inputs(a, b)
        try:
            wanted = eager(program.function, inputs)
        except (RuntimeError, IndexError):
            continue  # no sizes for this program
        call = next((call for gm, call in compiled if takes(gm, inputs)), None)
        if call is None:
            gm = trace_symbolic(program.function, inputs)
            call = CudaBackend().compile(gm, inputs)
            compiled.append((gm, call))
        half = any(x.dtype == torch.bfloat16 for x in inputs if isinstance(x, torch.Tensor))
        compare(call(list(inputs)), wanted, 2e-2 if half else 1e-4, (a, b))
    return len(compiled)


def main() -> int:
    failures = 0
    for sample in SAMPLES:
        inputs = sample.inputs()
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
    sys.exit(symbolic() if sys.argv[1:] == ["symbolic"] else main())

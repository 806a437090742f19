"""Programs with scans on CPU tensors, as the backend cuts them.

With the argument "small" tiles are small, so that most rows take several; with "symbolic" sizes change between calls.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import takes, trace_symbolic
from sample_programs.scans import PROGRAMS, Program
from test_symbolic import compare

from framesmith_backends import CudaBackend
from framesmith_backends.render.triton import tile_rules

CUDA = CudaBackend()
#: Programs that fix sizes, or compute them: ends of loops that Triton's interpreter does not take.
FIXED = (
    "of what is the same",
    "in other shapes",
    "reshaped behind",
    "joined",
    "of numbers",
    "part",
)


def expected(program: Program, inputs: Sequence[Any]) -> list[Any]:
    found = program.function(*inputs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def fixed(program: Program) -> None:
    inputs = program.inputs()
    gm = trace(program.function, inputs)
    kernels = CUDA.explain(gm).kernels
    assert len(kernels) == program.kernels, f"{len(kernels)} kernels"
    found = CUDA.compile(gm, inputs)(list(inputs))
    compare(found, expected(program, inputs), _tolerance(program))


def _tolerance(program: Program) -> float:
    halves = program.dtype in (torch.bfloat16, torch.float16) or "bfloat16" in str(program.function.__code__.co_names)
    return 2e-2 if halves or "half" in program.name else 1e-3 if "long" in program.name else 1e-4


def symbolic(program: Program) -> None:
    inputs = program.inputs()
    gm = trace_symbolic(program.function, inputs)
    call, served = CUDA.compile(gm, inputs), 0
    for change in (lambda n: n + 2, lambda n: n // 2):
        shapes = tuple(tuple(change(n) if n > 1 else n for n in shape) for shape in program.shapes)
        values = Program(program.name, program.function, 0, shapes, program.dtype).inputs()
        if takes(gm, values):
            served += 1
            compare(call(list(values)), expected(program, values), _tolerance(program), shapes)
    assert served


def main(kind: str = "") -> int:
    if kind:
        tile_rules.LEAST_BLOCK, tile_rules.WHOLE_ROW, tile_rules.ROW_BLOCK, tile_rules.LANE_BLOCK = 4, 16, 16, 64
        tile_rules.LARGEST_BLOCK, tile_rules.MOST_COLUMNS, tile_rules.WHOLE_SCAN, tile_rules.SCAN_BLOCK = 16, 16, 16, 16
        tile_rules.LONGER_ROWS.clear()
    failures = 0
    for program in PROGRAMS:
        if (kind and program.name.startswith("long")) or (kind == "symbolic" and program.name in FIXED):
            continue
        try:
            (symbolic if kind == "symbolic" else fixed)(program)
            print("ok", program.name, flush=True)
        except Exception:
            failures += 1
            print("FAILED", program.name)
            traceback.print_exc(file=sys.stdout, limit=-4)
    return failures


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Programs with scans of pointwise bodies on CPU tensors, as the GPU's backend steps through them.

With the argument "symbolic" sizes change between calls.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import torch
from graphs.tracing_scans import Eager, trace_scans
from interpreter_scripts.attempts import failures_of
from sample_programs.steps import OTHER_SIZES, PROGRAMS, Program

from framesmith_backends import CudaBackend

CUDA = CudaBackend()


def attempt(program: Program) -> None:
    inputs = program.inputs()
    gm = trace_scans(program.function, inputs)
    assert not [note for note in CUDA.explain(gm).lowering.notes if "scan" in note]
    found = CUDA.compile(gm, inputs)(list(inputs))
    tolerance = 2e-2 if program.dtype.itemsize == 2 else 1e-4
    for one, wanted in zip(found, program.function(Eager(), *inputs), strict=True):
        torch.testing.assert_close(one, wanted, rtol=tolerance, atol=tolerance)


def symbolic(program: Program) -> None:
    inputs = program.inputs()
    gm = trace_scans(program.function, inputs, symbolic=True)
    call = CUDA.compile(gm, inputs)
    for shapes in (program.shapes, OTHER_SIZES[program.name][0]):
        values = replace(program, shapes=shapes).inputs()
        for one, wanted in zip(call(list(values)), program.function(Eager(), *values), strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-4)


def main(kind: str = "") -> int:
    if kind == "symbolic":
        return failures_of((p.name, partial(symbolic, p)) for p in PROGRAMS if p.name in OTHER_SIZES)
    return failures_of((program.name, partial(attempt, program)) for program in PROGRAMS)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Run by test_dynamic_kernels.py with TRITON_INTERPRET=1: its programs through the cuda backend on CPU tensors."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial

import torch

import framesmith
from framesmith_backends.launch.cuda import triton_jit
from framesmith_backends.render.triton import tile_rules
from integration_tests.harness.sweeps import LONG
from integration_tests.kernels.test_dynamic_kernels import (
    FULL,
    INTERPRETED,
    INTERPRETED_OF_SO_MANY,
    OF_SO_MANY,
    SPECIAL,
    Program,
    check_of_so_many,
    results,
)  # fmt: skip

#: Sizes of the calls, in order: the first, another, the general, empty and single ones, and more than a block.
SIZES = ((3, 5), (4, 7), (0, 5), (6, 37))
if LONG:
    SIZES += ((8, 16), (5, 0), (1, 6), (20, 50))


def run(program: Program) -> None:
    framesmith.reset()
    compiled = framesmith.compile(program.function, backend="cuda")
    for a, b in SIZES:
        if program in FULL and min(a, b) < 2:
            continue
        torch.manual_seed(a + b)
        inputs = program.inputs(a, b)
        wanted = results(program.function, inputs)
        for one, other in zip(results(compiled, inputs), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-4, equal_nan=True, msg=lambda m: f"{(a, b)}: {m}")
    graphs = framesmith.stats()["graphs"]
    assert graphs <= program.graphs + (0 if program in FULL else SPECIAL), graphs


def checks() -> list[tuple[str, Callable[[], None]]]:
    """Return each interpreted program's name and check."""
    found = [(program.name, partial(run, program)) for program in INTERPRETED]
    return found + [(name, partial(check_of_so_many, OF_SO_MANY[name], "cuda")) for name in INTERPRETED_OF_SO_MANY]


def main() -> int:
    """The number of programs that fail. Blocks are small, so that rows and grids have several."""
    warnings.simplefilter("error", framesmith.FramesmithWarning)
    tile_rules.LEAST_BLOCK, tile_rules.WHOLE_ROW, tile_rules.ROW_BLOCK, tile_rules.LANE_BLOCK = 4, 16, 16, 64
    tile_rules.LONGER_ROWS.clear()
    triton_jit.MOST_PROGRAMS = 3
    failures = 0
    for name, check in checks():
        try:
            check()
            print("ok", name, flush=True)
        except Exception:
            failures += 1
            print("FAILED", name)
            traceback.print_exc(file=sys.stdout, limit=-4)
    return failures


if __name__ == "__main__":
    sys.exit(main())

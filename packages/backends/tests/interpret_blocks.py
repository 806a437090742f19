"""Run by launch/test_interpreted_blocks.py with TRITON_INTERPRET=1: reductions and scans of blocks in both ways."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from itertools import product

import torch
import triton
import triton.language as tl

from framesmith_backends.launch import triton_support as fs
from framesmith_backends.launch.interpreted_blocks import whole_blocks

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all")
SCANS = ("sum", "prod", "max", "min")
ROWS, COLUMNS = 4, 16


def kernel_of(call: str, shape: str) -> Callable[..., object]:
    """A Triton function that stores what the call makes of a block of rows and columns."""
    source = (
        "def kernel(a, b):\n"
        f"    rows, columns = tl.arange(0, {ROWS})[:, None], tl.arange(0, {COLUMNS})[None, :]\n"
        f"    x = tl.load(a + rows * {COLUMNS} + columns)\n"
        f"    y = {call}\n"
        f"    tl.store(b + {shape}, y)\n"
    )
    space: dict[str, object] = {"tl": tl, "fs": fs}

    file = f"<blocks {call}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), space)
    return triton.jit(space["kernel"])


#: Places of results that keep a dimension of 1, by the axis that is reduced, and of those that do not.
KEPT = {0: "columns", 1: "rows"}
GONE = {0: f"tl.arange(0, {COLUMNS})", 1: f"tl.arange(0, {ROWS})"}
ALL = f"rows * {COLUMNS} + columns"
CALLS = [
    *((f"fs.reduce_{kind}(x, {axis}, True)", KEPT[axis]) for kind, axis in product(REDUCTIONS, (0, 1))),
    *((f"fs.reduce_{kind}(x, {axis}, False)", GONE[axis]) for kind, axis in product(REDUCTIONS, (0, 1))),
    *((f"fs.reduce_{kind}(x, None, False)", "0") for kind in REDUCTIONS),
    *((f"fs.scan_{kind}(x, {axis}, {back})", ALL) for kind, axis, back in product(SCANS, (0, 1), (True, False))),
]


def main() -> None:
    torch.manual_seed(0)
    # Whole numbers and powers of two: sums and products are exact in any order.
    numbers = torch.tensor([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])
    for call, shape in CALLS:
        x = numbers[torch.randint(6, (ROWS, COLUMNS))]
        if "max" in call or "min" in call:
            x[torch.rand(ROWS, COLUMNS) < 0.05] = float("nan")
        if "any" in call or "all" in call:
            x = (x > (1 if "any" in call else -2)).int() if torch.rand(()) < 0.7 else torch.zeros_like(x).int()
        kernel = kernel_of(call, shape)
        one, other = torch.full((ROWS, COLUMNS), 7.0), torch.full((ROWS, COLUMNS), 7.0)
        kernel[(1,)](x, one)
        with whole_blocks():
            kernel[(1,)](x, other)
        assert not torch.equal(one, torch.full_like(one, 7.0)), call
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=call)
        print("ok", call)


if __name__ == "__main__":
    main()

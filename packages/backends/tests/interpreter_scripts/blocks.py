"""Reductions of blocks beside torch's."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from framesmith_backends.launch.cuda import triton_support as fs

ROWS, COLUMNS = 4, 16
#: torch's function for each reduction of a block of numbers or, of the last two, of truths.
REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin, "any": torch.any, "all": torch.all,
}  # fmt: skip


def kernel_of(call: str, indices: str) -> Any:
    """A Triton function that stores what the call makes of a block of rows and columns."""
    source = (
        "def kernel(a, b):\n"
        f"    rows, columns = tl.arange(0, {ROWS})[:, None], tl.arange(0, {COLUMNS})[None, :]\n"
        f"    x = tl.load(a + rows * {COLUMNS} + columns)\n"
        f"    tl.store(b + {indices}, {call})\n"
    )
    file = f"<blocks {call}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    space: dict[str, Any] = {"tl": tl, "fs": fs}
    exec(compile(source, file, "exec"), space)
    return triton.jit(space["kernel"])


def numbers(name: str) -> torch.Tensor:
    """A block whose sums and products are exact in any order; some NaN, some rows without any truth or with all."""
    if name in ("any", "all"):
        x = torch.randint(2, (ROWS, COLUMNS), dtype=torch.int32)
        x[0], x[1], x[:, 0], x[:, 1] = 0, 1, 0, 1
        return x
    x = torch.tensor([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])[torch.randint(6, (ROWS, COLUMNS))]
    if name in ("max", "min"):
        x[2, 3] = float("nan")
    return x


def main() -> None:
    torch.manual_seed(0)
    for (name, wanted), axis, keep in itertools.product(REDUCTIONS.items(), (0, 1), (True, False)):
        x = numbers(name)
        indices = ("columns", "rows")[axis] if keep else f"tl.arange(0, {(COLUMNS, ROWS)[axis]})"
        found = torch.full(((COLUMNS, ROWS)[axis],), 7.0)
        kernel_of(f"fs.reduce_{name}(x, {axis}, {keep})", indices)[(1,)](x, found)
        torch.testing.assert_close(found, wanted(x, axis).float(), rtol=0, atol=0, equal_nan=True)
        print("ok", name, axis, keep)
    for name, wanted in REDUCTIONS.items():
        x, found = numbers(name), torch.full((1,), 7.0)
        kernel_of(f"fs.reduce_{name}(x, None, False)", "0")[(1,)](x, found)
        torch.testing.assert_close(found[0], wanted(x).float(), rtol=0, atol=0, equal_nan=True)
        print("ok", name)


if __name__ == "__main__":
    main()

"""Cumulative sums, products, extremes and log-sum-exps on the CPU, by machine code of our own.

`framesmith_backends::scanned(x, dim, kind, dtype, reverse)` and `::scanned_extremes(x, dim, kind)` are the operators
that plans call, with kinds of `render.KINDS`. They join elements as ATen does, in the same order unless lines are few
and long. See docs/design/kernels/0021-scans.md.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from framesmith_backends.ir.dtypes import NUMBERS, is_float
from framesmith_backends.native_ops.base import EXTENT, THREADS, CodeCache, operator, processor, threads_for
from framesmith_backends.native_ops.scans.render import JOB, KINDS, MOST_WIDTH, SLOT, Scan, lanes_of, render_scan
from framesmith_guards.torch_adapter import aten

#: Elements below which ATen is faster: of all kinds, and of log-sum-exps.
FEWEST, FEWEST_LOGARITHMS = 8192, 512
#: The number of lines side by side, and the length of contiguous sums and products, below which ATen is faster.
FEWEST_ACROSS, SHORTEST = 4, 16
#: Elements for each thread.
GRAIN = 16_384
#: Fewer lines than lanes are split into chunks of at least so many elements.
SHORTEST_CHUNK = 64
#: Indices are of 32 bits in registers, and of so many bytes in memory.
MOST_INDICES, INDEX = 2**31, 8

#: ATen's operator of each kind.
ATENS: dict[str, Any] = {
    "sum": aten.cumsum.default, "prod": aten.cumprod.default, "max": aten.cummax.default, "min": aten.cummin.default,
    "logsumexp": aten.logcumsumexp.default,
}  # fmt: skip
#: Types of results. Narrower integers wrap around in ATen, which these do in sums of their own type only.
RESULTS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
EXTREMES = (*RESULTS, torch.int32)

SCAN: CodeCache[Scan] = CodeCache("scan", render_scan, {"fs_scan": (EXTENT, THREADS), "fs_join": ()})


@functools.lru_cache
def _lanes(scan: Scan) -> int:
    return lanes_of(scan, processor())


def supports(kind: str, dtype: torch.dtype) -> bool:
    """Whether results of this type are computed here."""
    if KINDS[kind].has_indices:
        return dtype in EXTREMES
    return dtype in RESULTS and (kind != "logsumexp" or dtype.is_floating_point)


def is_faster(x: torch.Tensor, dim: int, kind: str) -> bool:
    """Whether this takes less time than ATen."""
    if x.numel() < (FEWEST_LOGARITHMS if kind == "logsumexp" else FEWEST):
        return False
    inner = math.prod(x.shape[dim + 1 :])
    if inner > 1:
        return inner >= FEWEST_ACROSS
    return kind not in ("sum", "prod") or x.dim() < 1 or x.shape[dim] >= SHORTEST


def scan_into(x: torch.Tensor, dim: int, kind: str, values: torch.Tensor, indices: torch.Tensor | None = None,
              reverse: bool = False) -> None:  # fmt: skip
    """Scan a contiguous tensor that has elements; `values` and `indices` are contiguous, of the same shape."""
    sizes = x.shape or (1,)
    outer, count, inner = math.prod(sizes[:dim]), sizes[dim], math.prod(sizes[dim + 1 :])
    source, result = x.data_ptr(), values.data_ptr()
    index = 0 if indices is None else indices.data_ptr()
    scan = Scan(kind, NUMBERS[x.dtype], NUMBERS[values.dtype], inner > 1, reverse)
    lanes, threads = _lanes(scan), threads_for(outer * count * inner, GRAIN)
    if inner > 1:
        tiles = max(-(-inner // MOST_WIDTH), -(-threads // outer))
        width = -(-inner // (tiles * lanes)) * lanes
        job = JOB(source=source, values=result, indices=index, outer=outer, count=count, inner=inner, width=width)
        SCAN[scan].run(job, outer * -(-inner // width), threads)
    elif outer < lanes // 2 and count >= 2 * lanes * SHORTEST_CHUNK:
        steps = (x.element_size(), values.element_size(), INDEX)
        for first in range(0, outer * count, count):
            line = [start + first * step for start, step in zip((source, result, index), steps, strict=True)]
            _in_chunks(line, steps, count, scan, threads)
    else:
        job = JOB(source=source, values=result, indices=index, outer=outer, count=count, stride=count)
        SCAN[scan].run(job, -(-outer // lanes), threads)


def _in_chunks(line: list[int], steps: tuple[int, int, int], count: int, scan: Scan, threads: int) -> None:
    """Scan one long line, given by its addresses and bytes of elements: see Note [Chunks]."""
    chunks = _lanes(scan) * threads
    length, slots = count // chunks, chunks + 1
    states = torch.empty(2 * slots * SLOT, dtype=torch.uint8, device="cpu")
    done = length * chunks
    names = ("source", "values", "indices")
    # Reversed, what is left over stands before the chunks.
    shifts = (count - done, 0) if scan.reverse else (0, done)
    start, rest = (
        dict(zip(names, (one + shift * step for one, step in zip(line, steps, strict=True)), strict=True))
        for shift in shifts
    )
    job = JOB(**start, states=states.data_ptr(), slots=slots, outer=chunks, count=length, stride=length)
    totals, whole = SCAN[scan._replace(part="totals")], SCAN[scan._replace(part="rest")]
    totals.run(job, threads, threads)
    totals.entries["fs_join"](job)
    whole.run(job, threads, threads)
    if done < count:
        last = states.data_ptr() + chunks * SLOT
        job = JOB(**rest, states=last, slots=slots, outer=1, count=count - done, stride=length, first=done)
        whole.run(job, 1, 1)


def scanned(x: torch.Tensor, dim: int, kind: str, dtype: torch.dtype, reverse: bool) -> torch.Tensor | None:
    """Return a cumulative sum, product or log-sum-exp along a dimension, of type `dtype`, from the end if `reverse`."""
    dim %= x.dim() or 1
    if not supports(kind, dtype) or not is_faster(x, dim, kind):
        return None
    values = torch.empty(x.shape, dtype=dtype, device="cpu")
    scan_into(_readable(x, dtype), dim, kind, values, reverse=reverse)
    return values


def _readable(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous tensor, of the result's type or of one that is converted as it is read."""
    given = NUMBERS.get(x.dtype)
    widened = given is not None and dtype == (torch.float64 if is_float(given) else torch.int64)
    return (x if x.dtype == dtype or widened else x.to(dtype)).contiguous()


def _scanned_by_aten(x: torch.Tensor, dim: int, kind: str, dtype: torch.dtype, reverse: bool) -> torch.Tensor:
    x = x.to(dtype).contiguous()
    found: torch.Tensor = ATENS[kind](x.flip(dim) if reverse else x, dim)
    return found.flip(dim) if reverse else found


def scanned_extremes(x: torch.Tensor, dim: int, kind: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return cumulative extremes along a dimension, and the index of the last element so far that is one."""
    dim %= x.dim() or 1
    if not supports(kind, x.dtype) or not is_faster(x, dim, kind) or (x.shape or (1,))[dim] >= MOST_INDICES:
        return None
    values = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    indices = torch.empty(x.shape, dtype=torch.int64, device="cpu")
    scan_into(x.contiguous(), dim, kind, values, indices)
    return values, indices


def _shape_of_extremes(x: torch.Tensor, dim: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = (torch.empty(x.shape, dtype=dtype, device=x.device) for dtype in (x.dtype, torch.int64))
    return values, indices


SCANNED = operator(
    "scanned(Tensor x, int dim, str kind, ScalarType dtype, bool reverse) -> Tensor", scanned,
    lambda x, dim, kind, dtype, reverse: torch.empty(x.shape, dtype=dtype, device=x.device), _scanned_by_aten,
)  # fmt: skip
EXTREMES_SCANNED = operator(
    "scanned_extremes(Tensor x, int dim, str kind) -> (Tensor, Tensor)", scanned_extremes, _shape_of_extremes,
    lambda x, dim, kind: tuple(ATENS[kind](x, dim)),
)  # fmt: skip

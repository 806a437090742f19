"""Running sums, products, extremes and logarithms of sums on the CPU, by machine code of our own.

`framesmith_backends::scanned(x, dim, kind, dtype, reverse)` and `::scanned_extremes(x, dim, kind)` are the operators
that plans call; kinds are those of `render.llvm.scans`. Each joins what ATen's calls join, in the same order where the
lines are many. See docs/design/0021-scans.md.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from framesmith_backends.ir.dtypes import FROM_TORCH, is_float
from framesmith_backends.render.llvm.scans import JOB, KINDS, MOST_WIDTH, SLOT, Scan, lanes_of, render_scan

aten = torch.ops.aten

#: Below this many elements ATen's call takes less time than ours.
FEWEST = 512
#: Elements for each thread, at least.
GRAIN = 16_384
#: Fewer lines than lanes are cut into pieces of so many elements, at least.
SHORTEST_PIECE = 64
#: Places are of 32 bits until they are stored.
MOST_PLACES = 2**31

#: ATen's call of each kind.
ATENS: dict[str, Any] = {
    "total": aten.cumsum.default, "product": aten.cumprod.default, "greatest": aten.cummax.default,
    "least": aten.cummin.default, "log_sum_exp": aten.logcumsumexp.default,
}  # fmt: skip
#: Types of results. Whole numbers of fewer bits wrap around in ATen's calls as these do here.
RESULTS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
EXTREMES = (*RESULTS, torch.int32)


def is_scanned(kind: str, dtype: torch.dtype) -> bool:
    """Whether our own code gives results of this type."""
    if KINDS[kind].has_places:
        return dtype in EXTREMES
    return dtype in RESULTS and (kind != "log_sum_exp" or dtype.is_floating_point)


class Code:
    """Machine code of a scan; it is called without the interpreter's lock."""

    def __init__(self, scan: Scan) -> None:
        from framesmith_backends.launch.native import engine_of, machine

        target = machine().target
        self.lanes = lanes_of(scan, target)
        self.engine = engine_of("scan", render_scan(scan, target))
        kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
        self.run: Callable[..., None] = ctypes.CFUNCTYPE(None, *kinds)(self.engine.get_function_address("fs_scan"))
        self.join: Callable[..., None] = ctypes.CFUNCTYPE(None, kinds[0])(self.engine.get_function_address("fs_join"))


@functools.cache
def code(scan: Scan) -> Code:
    """Made at its first use."""
    return Code(scan)


@dataclass(frozen=True, slots=True)
class Job:
    """What `render.llvm.scans.JOB` says."""

    source: int
    values: int
    outer: int
    count: int
    places: int = 0
    states: int = 0
    slots: int = 0
    inner: int = 1
    apart: int = 0
    width: int = 1
    first: int = 0

    def words(self) -> Any:
        return (ctypes.c_int64 * len(JOB))(*(getattr(self, name) for name in JOB))


def scan_into(x: torch.Tensor, dim: int, kind: str, values: torch.Tensor, places: torch.Tensor | None = None,
              reverse: bool = False) -> None:  # fmt: skip
    """All of a contiguous tensor that has elements; what is written to is contiguous, of the same shape."""
    sizes = x.shape or (1,)
    outer, count, inner = math.prod(sizes[:dim]), sizes[dim], math.prod(sizes[dim + 1 :])
    scan = Scan(kind, FROM_TORCH[x.dtype], FROM_TORCH[values.dtype], inner > 1, reverse)
    job = Job(x.data_ptr(), values.data_ptr(), outer, count, places.data_ptr() if places is not None else 0)
    threads = min(torch.get_num_threads(), -(-x.numel() // GRAIN))
    lanes = code(scan).lanes
    if inner > 1:
        width = MOST_WIDTH
        while width > 2 * lanes and outer * -(-inner // width) < 2 * threads:
            width //= 2
        job = replace(job, inner=inner, width=width)
        code(scan).run(job.words(), outer * -(-inner // width), threads)
    elif outer < lanes // 2 and not reverse and count >= 2 * lanes * SHORTEST_PIECE:
        sizes_of = (x.element_size(), values.element_size(), 8)
        for line in range(outer):
            starts = (job.source, job.values, job.places)
            source, into, at = (start + line * count * size for start, size in zip(starts, sizes_of, strict=True))
            _in_pieces(replace(job, source=source, values=into, places=at, outer=1), scan, threads, sizes_of)
    else:
        code(scan).run(replace(job, apart=count).words(), -(-outer // lanes), threads)


def _in_pieces(job: Job, scan: Scan, threads: int, sizes: tuple[int, int, int]) -> None:
    """One long line: see Note [Pieces]."""
    totals, rest = code(replace(scan, part="totals")), code(replace(scan, part="rest"))
    pieces = totals.lanes * threads
    length = job.count // pieces
    slots = pieces + 1
    states = torch.empty(2 * slots * SLOT, dtype=torch.uint8, device="cpu")
    cut = replace(job, states=states.data_ptr(), slots=slots, outer=pieces, count=length, apart=length)
    totals.run(cut.words(), threads, threads)
    totals.join(cut.words())
    rest.run(cut.words(), threads, threads)
    done = length * pieces
    if done < job.count:
        source, values, places = (
            start + done * size for start, size in zip((job.source, job.values, job.places), sizes, strict=True)
        )
        left = replace(cut, source=source, values=values, places=places, outer=1, count=job.count - done, first=done,
                       states=cut.states + pieces * SLOT)  # fmt: skip
        rest.run(left.words(), 1, 1)


_library = torch.library.Library("framesmith_backends", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "scanned(Tensor x, int dim, str kind, ScalarType dtype, bool reverse) -> Tensor"
)
_library.define(  # type: ignore[no-untyped-call]
    "scanned_extremes(Tensor x, int dim, str kind) -> (Tensor, Tensor)"
)


def scanned(x: torch.Tensor, dim: int, kind: str, dtype: torch.dtype, reverse: bool) -> torch.Tensor:
    """A running sum, product or logarithm of sums along a dimension, of that type; from its end on if `reverse`."""
    given = _readable(x, dtype)
    if given.numel() < FEWEST or not is_scanned(kind, dtype):
        return _by_aten(given, dim, kind, dtype, reverse)
    values = torch.empty(x.shape, dtype=dtype, device="cpu")
    scan_into(given, dim % (x.dim() or 1), kind, values, reverse=reverse)
    return values


def _readable(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The elements one behind the other, of a type that is converted as they are read."""
    widened = x.dtype in FROM_TORCH and dtype == torch.int64 and not is_float(FROM_TORCH[x.dtype])
    widened = widened or (x.is_floating_point() and dtype == torch.float64)
    return (x if x.dtype == dtype or widened else x.to(dtype)).contiguous()


def _by_aten(x: torch.Tensor, dim: int, kind: str, dtype: torch.dtype, reverse: bool) -> torch.Tensor:
    x = x.to(dtype)
    found: torch.Tensor = ATENS[kind](x.flip(dim) if reverse else x, dim)
    return found.flip(dim) if reverse else found


def scanned_extremes(x: torch.Tensor, dim: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Running extremes along a dimension, and where each was met last."""
    dim_ = dim % (x.dim() or 1)
    if x.numel() < FEWEST or not is_scanned(kind, x.dtype) or (x.shape or (1,))[dim_] >= MOST_PLACES:
        values, places = ATENS[kind](x, dim)
        return values, places
    values = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    places = torch.empty(x.shape, dtype=torch.int64, device="cpu")
    scan_into(x.contiguous(), dim_, kind, values, places)
    return values, places


def _shape_of_scanned(x: torch.Tensor, dim: int, kind: str, dtype: torch.dtype, reverse: bool) -> torch.Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _shape_of_extremes(x: torch.Tensor, dim: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(
        x.shape, dtype=torch.int64, device=x.device
    )


_library.impl("scanned", scanned, "CPU")  # type: ignore[no-untyped-call]
_library.impl("scanned_extremes", scanned_extremes, "CPU")  # type: ignore[no-untyped-call]
_library.impl("scanned", _shape_of_scanned, "Meta")  # type: ignore[no-untyped-call]
_library.impl("scanned_extremes", _shape_of_extremes, "Meta")  # type: ignore[no-untyped-call]
SCANNED = torch.ops.framesmith_backends.scanned.default
EXTREMES_SCANNED = torch.ops.framesmith_backends.scanned_extremes.default

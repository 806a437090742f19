"""Running sums, products, extremes and logarithms of sums on the CPU, by machine code of our own.

`framesmith_backends::scanned(x, dim, kind, dtype, reverse)` and `::scanned_extremes(x, dim, kind)` are the operators
that plans call; kinds are those of `render`. Each joins what ATen's calls join, in the same order where the
lines are many. See docs/design/kernels/0021-scans.md.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from framesmith_backends.ir.dtypes import NUMBERS, is_float
from framesmith_backends.launch.once import once
from framesmith_backends.native_ops.base import operator
from framesmith_backends.native_ops.scans.render import JOB, KINDS, MOST_WIDTH, SLOT, Scan, lanes_of, render_scan
from framesmith_guards.torch_adapter import aten

#: Below so many elements ATen's call takes less time than ours: of all kinds, and of logarithms.
FEWEST, FEWEST_LOGARITHMS = 8192, 512
#: So few lines side by side ATen's calls scan faster, one by one; and so short sums and products one behind the other.
FEWEST_ACROSS, SHORTEST = 4, 16
#: Elements for each thread, at least.
GRAIN = 16_384
#: Fewer lines than lanes are cut into pieces of so many elements, at least.
SHORTEST_PIECE = 64
#: Places are of 32 bits until they are stored, and of so many bytes then.
MOST_PLACES, PLACE = 2**31, 8

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


def fewest(kind: str) -> int:
    """Elements that are worth it."""
    return FEWEST_LOGARITHMS if kind == "log_sum_exp" else FEWEST


def is_worth_it(x: torch.Tensor, dim: int, kind: str) -> bool:
    """Whether our own code takes less time than ATen's."""
    if x.numel() < fewest(kind):
        return False
    inner = math.prod(x.shape[dim + 1 :])
    if inner > 1:
        return inner >= FEWEST_ACROSS
    return kind not in ("total", "product") or x.dim() < 1 or x.shape[dim] >= SHORTEST


class Where(NamedTuple):
    """Addresses."""

    source: int
    values: int
    places: int

    def moved(self, source: int, values: int, places: int) -> Where:
        return Where(self.source + source, self.values + values, self.places + places)


class Code:
    """Machine code of a scan; it is called without the interpreter's lock."""

    def __init__(self, scan: Scan) -> None:
        from framesmith_backends.launch.llvm.engine import engine_of, machine

        target = machine().target
        self.lanes = lanes_of(scan, target)
        self.engine = engine_of("scan", render_scan(scan, target))
        kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
        self.run: Callable[..., None] = ctypes.CFUNCTYPE(None, *kinds)(self.engine.get_function_address("fs_scan"))
        self.join: Callable[..., None] = ctypes.CFUNCTYPE(None, kinds[0])(self.engine.get_function_address("fs_join"))

    @staticmethod
    def job(where: Where, outer: int, count: int, states: int = 0, slots: int = 0, inner: int = 1, apart: int = 0,
            width: int = 1, first: int = 0) -> Any:  # fmt: skip
        """What `render.JOB` says."""
        return _Words(*where, states, slots, outer, count, inner, apart, width, first)

    def scan(self, where: Where, outer: int, count: int, points: int, threads: int, **more: int) -> None:
        """All points, by so many threads at most; of what is joined see `job`."""
        self.run(self.job(where, outer, count, **more), points, threads)


_Words: Any = ctypes.c_int64 * len(JOB)


@once
def code(kind: str, source: torch.dtype, result: torch.dtype, across: bool, reverse: bool, part: str = "whole") -> Code:
    """Made at its first use."""
    return Code(Scan(kind, NUMBERS[source], NUMBERS[result], across, reverse, part))


def scan_into(x: torch.Tensor, dim: int, kind: str, values: torch.Tensor, places: torch.Tensor | None = None,
              reverse: bool = False) -> None:  # fmt: skip
    """All of a contiguous tensor that has elements; what is written to is contiguous, of the same shape."""
    sizes = x.shape or (1,)
    outer, count, inner = math.prod(sizes[:dim]), sizes[dim], math.prod(sizes[dim + 1 :])
    where = Where(x.data_ptr(), values.data_ptr(), 0 if places is None else places.data_ptr())
    run = code(kind, x.dtype, values.dtype, inner > 1, reverse)
    threads = min(torch.get_num_threads(), -(-outer * count * inner // GRAIN))
    if inner > 1:
        tiles = max(-(-inner // MOST_WIDTH), -(-threads // outer))
        width = -(-inner // (tiles * run.lanes)) * run.lanes
        run.scan(where, outer, count, outer * -(-inner // width), threads, inner=inner, width=width)
    elif outer < run.lanes // 2 and count >= 2 * run.lanes * SHORTEST_PIECE:
        for line in range(outer):
            first = line * count
            start = where.moved(first * x.element_size(), first * values.element_size(), first * PLACE)
            _in_pieces(start, count, kind, x, values, reverse, threads)
    else:
        run.scan(where, outer, count, -(-outer // run.lanes), threads, apart=count)


def _in_pieces(where: Where, count: int, kind: str, x: torch.Tensor, values: torch.Tensor, reverse: bool,
               threads: int) -> None:  # fmt: skip
    """One long line: see Note [Pieces]."""
    totals, rest = (code(kind, x.dtype, values.dtype, False, reverse, part) for part in ("totals", "rest"))
    pieces = totals.lanes * threads
    length, slots = count // pieces, pieces + 1
    states = torch.empty(2 * slots * SLOT, dtype=torch.uint8, device="cpu")
    first = states.data_ptr()
    given = {"states": first, "slots": slots, "apart": length}
    done = length * pieces
    start, left = where, where.moved(done * x.element_size(), done * values.element_size(), done * PLACE)
    if reverse:  # what is left stands before the pieces
        over = count - done
        start, left = where.moved(over * x.element_size(), over * values.element_size(), over * PLACE), where
    totals.scan(start, pieces, length, threads, threads, **given)
    totals.join(totals.job(start, pieces, length, **given))
    rest.scan(start, pieces, length, threads, threads, **given)
    if done < count:
        given |= {"states": first + pieces * SLOT, "first": done}
        rest.scan(left, 1, count - done, 1, 1, **given)


def scanned(x: torch.Tensor, dim: int, kind: str, dtype: torch.dtype, reverse: bool) -> torch.Tensor:
    """A running sum, product or logarithm of sums along a dimension, of that type; from its end on if `reverse`."""
    given = _readable(x, dtype)
    dim %= x.dim() or 1
    if not is_scanned(kind, dtype) or not is_worth_it(given, dim, kind):
        return _by_aten(given, dim, kind, dtype, reverse)
    values = torch.empty(x.shape, dtype=dtype, device="cpu")
    scan_into(given, dim, kind, values, reverse=reverse)
    return values


def _readable(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The elements one behind the other, of a type that is converted as they are read."""
    given = NUMBERS.get(x.dtype)
    widened = given is not None and dtype == (torch.float64 if is_float(given) else torch.int64)
    return (x if x.dtype == dtype or widened else x.to(dtype)).contiguous()


def _by_aten(x: torch.Tensor, dim: int, kind: str, dtype: torch.dtype, reverse: bool) -> torch.Tensor:
    x = x.to(dtype)
    found: torch.Tensor = ATENS[kind](x.flip(dim) if reverse else x, dim)
    return found.flip(dim) if reverse else found


def scanned_extremes(x: torch.Tensor, dim: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Running extremes along a dimension, and where each was met last."""
    dim %= x.dim() or 1
    if not is_scanned(kind, x.dtype) or not is_worth_it(x, dim, kind) or (x.shape or (1,))[dim] >= MOST_PLACES:
        values, places = ATENS[kind](x, dim)
        return values, places
    values = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    places = torch.empty(x.shape, dtype=torch.int64, device="cpu")
    scan_into(x.contiguous(), dim, kind, values, places)
    return values, places


def _shape_of_scanned(x: torch.Tensor, dim: int, kind: str, dtype: torch.dtype, reverse: bool) -> torch.Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _shape_of_extremes(x: torch.Tensor, dim: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(
        x.shape, dtype=torch.int64, device=x.device
    )


SCANNED = operator(
    "scanned(Tensor x, int dim, str kind, ScalarType dtype, bool reverse) -> Tensor", scanned, _shape_of_scanned
)
EXTREMES_SCANNED = operator(
    "scanned_extremes(Tensor x, int dim, str kind) -> (Tensor, Tensor)", scanned_extremes, _shape_of_extremes
)

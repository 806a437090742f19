"""Sorts on the CPU by machine code of our own.

`framesmith_backends::sorted(x, dim, descending, stable)` and, for one of its results alone, `::sorted_values` and
`::sorted_indices` are the operators that plans call. Results are those of ATen bit for bit, equal elements in its
order. See docs/design/kernels/0024-sorts.md.

Note [Ties]: the native sort is stable. Where that is not asked for, ATen has an order of its own for equal elements of
longer lines. Lines where that order shows in a result are found by the native sort, and sorted again by ATen. Types
with few values, most of whose lines have ties, are left to ATen at once where indices are asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from framesmith_backends.ir.dtypes import NUMBERS
from framesmith_backends.native_ops.base import EXTENT, THREADS, CodeCache, operator, threads_for
from framesmith_backends.native_ops.sorts.long_lines import LONG_JOB, counts_bytes, render_long_sort
from framesmith_backends.native_ops.sorts.render import GROUP, ITEMS, JOB, SLOT, SLOTS, Sort, arrays, render_sort
from framesmith_guards.torch_adapter import OpOverload, aten

#: Elements below which ATen is faster: stable sorts, and others; of these also lengths of lines.
FEWEST, FEWEST_UNSTABLE, SHORTEST_UNSTABLE = 2048, 4096, 3
#: Elements for each thread.
GRAIN = 4096
#: Fewer lines than threads are split among them from so many elements on.
SHORTEST_SPLIT = 1 << 18
#: The longest lines that are sorted by ranks, by the bytes of an element.
MOST_RANKED = {1: 64, 2: 96, 4: 112, 8: 128}
#: Bytes of a cache line.
LINE = 64
#: The most bytes of scratch: so many for each of the tensor's, or so many.
MOST_TIMES, MOST_SCRATCH = 8, 1 << 26
#: Indices are of 32 bits until they are stored.
MOST_INDICES = 2**31
#: Tensors of one dimension that ATen sorts by radix, too, in ascending order.
RADIX_OF_ATEN = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FEWEST_RADIX_OF_ATEN = 1 << 15
#: The longest lines that ATen sorts by insertion, which is stable.
MOST_INSERTED = 16
#: Types, and the longest lines of them, that rarely have ties where indices are asked for.
FEW_TIES, MOST_WITH_FEW_TIES = (torch.float32, torch.float64), 4096

SORT: CodeCache[Sort] = CodeCache("sort", render_sort, {"fs_sort": (EXTENT, THREADS)})
LONG_SORT: CodeCache[Sort] = CodeCache("sort", render_long_sort, {"fs_sort": (EXTENT, THREADS)})


def is_faster(x: torch.Tensor, dim: int, descending: bool, stable: bool, indices: bool) -> bool:
    """Whether the native sort takes less time than ATen, with indices among the results or not."""
    if x.dtype not in NUMBERS or x.numel() < (FEWEST if stable else FEWEST_UNSTABLE) or x.shape[dim] >= MOST_INDICES:
        return False
    if not stable and x.shape[dim] < SHORTEST_UNSTABLE:
        return False
    if x.dim() == 1 and x.dtype in RADIX_OF_ATEN and not descending and x.numel() >= FEWEST_RADIX_OF_ATEN:
        return False
    few_ties = x.dtype in FEW_TIES and x.shape[dim] <= MOST_WITH_FEW_TIES
    return not indices or not _ties_show(x, dim, stable, indices) or few_ties


def _ties_show(x: torch.Tensor, dim: int, stable: bool, indices: bool) -> bool:
    """Whether the order of equal elements may show in the results: see Note [Ties]."""
    if stable or x.stride(dim) == 0:  # ATen returns one element as it is
        return False
    if x.shape[dim] <= MOST_INSERTED and short_lines_are_stable():
        return False
    return indices or x.is_floating_point()


@functools.cache
def short_lines_are_stable() -> bool:
    """Whether this torch sorts short lines stably where that is not asked for."""
    numbers, digits = torch.arange(1 << 8, device="cpu"), torch.arange(MOST_INSERTED, device="cpu")
    bits = numbers.view(-1, 1) >> digits.remainder(8)
    for dtype in NUMBERS:
        for count in range(2, MOST_INSERTED + 1):
            x = (bits[:, :count] & 1).to(dtype)
            for descending in (False, True):
                unstable, in_order = (aten.sort.stable(x, stable=stable, dim=1, descending=descending)[1]
                                      for stable in (False, True))  # fmt: skip
                if not torch.equal(unstable, in_order):
                    return False
    return True


def sort_into(x: torch.Tensor, dim: int, descending: bool, values: torch.Tensor | None, indices: torch.Tensor | None,
              ties: torch.Tensor | None = None) -> None:  # fmt: skip
    """Sort a tensor that has elements and no gaps; results have its strides.

    `ties` has a byte for each line, in the order of memory, cleared where the order of equal elements does not show.
    """
    count, inner = x.shape[dim], x.stride(dim) if x.shape[dim] > 1 else 1
    lines, threads = x.numel() // count, torch.get_num_threads()
    sort = Sort(NUMBERS[x.dtype], descending, values is not None, indices is not None, ties is not None, inner > 1,
                count <= MOST_RANKED[x.element_size()])  # fmt: skip
    room = _room(count)
    tensors = {"source": x, "values": values, "indices": indices}
    addresses = {name: 0 if one is None else one.data_ptr() for name, one in tensors.items()}
    if lines < threads and count >= SHORTEST_SPLIT and inner == 1 and ties is None:
        scratch = torch.empty(ITEMS * room + threads * counts_bytes(sort), dtype=torch.uint8, device="cpu")
        sizes = {name: 0 if one is None else count * one.element_size() for name, one in tensors.items()}
        for line in range(lines):
            here = {name: address + line * sizes[name] for name, address in addresses.items()}
            job = LONG_JOB(**here, scratch=scratch.data_ptr(), tasks=1, shares=threads, count=count, inner=1, room=room)
            LONG_SORT[sort].run(job, threads, threads)
        return
    tasks = lines // inner * -(-inner // GROUP)
    shares = threads_for(x.numel(), GRAIN, min(tasks, max(_most_scratch(x) // (arrays(sort) * room), 1)))
    scratch = torch.empty(shares * arrays(sort) * room, dtype=torch.uint8, device="cpu")
    where = {"ties": 0 if ties is None else ties.data_ptr(), "scratch": scratch.data_ptr()}
    job = JOB(**addresses, **where, tasks=tasks, shares=shares, count=count, inner=inner, room=room)
    SORT[sort].run(job, shares, shares)


def _room(count: int) -> int:
    """Bytes of an array in scratch, for lines of so many elements."""
    return -(-count // LINE) * LINE * SLOT + LINE


def _most_scratch(x: torch.Tensor) -> int:
    return max(MOST_TIMES * x.numel() * x.element_size(), MOST_SCRATCH)


Results = tuple[torch.Tensor | None, torch.Tensor | None]


def _sorted(wanted: tuple[bool, bool], x: torch.Tensor, dim: int, descending: bool, stable: bool) -> Results | None:
    """The values and the indices, those that are wanted; None where ATen is faster."""
    dim %= x.dim() or 1
    if x.dim() == 0 or not is_faster(x, dim, descending, stable, wanted[1]):
        return None
    if SLOTS * _room(x.shape[dim]) > _most_scratch(x) and x.stride(dim) != 1:
        return None  # few long lines side by side
    values = torch.empty_like(x) if wanted[0] else None
    indices = torch.empty_like(x, dtype=torch.int64) if wanted[1] else None
    ties_show = _ties_show(x, dim, stable, wanted[1])
    result = values if values is not None else indices
    assert result is not None
    if x.stride() != result.stride():
        x = torch.empty_like(result, dtype=x.dtype).copy_(x)
    ties = None
    if ties_show:
        ties = torch.ones(x.numel() // x.shape[dim], dtype=torch.bool, device="cpu")
    sort_into(x, dim, descending, values, indices, ties)
    if ties is not None and bool(ties.any()):
        _sort_again(x, dim, descending, (values, indices), ties)
    return values, indices


def _sort_again(x: torch.Tensor, dim: int, descending: bool, results: Results, ties: torch.Tensor) -> None:
    """Sort the lines that have ties by ATen."""
    count, inner = x.shape[dim], x.stride(dim)
    sizes, strides = (x.numel() // (count * inner), inner, count), (count * inner, 1, inner)
    where = ties.view(sizes[:2]).nonzero(as_tuple=True)
    found = _by_aten(x.as_strided(sizes, strides)[where], 1, descending, False)
    for result, again in zip(results, found, strict=True):
        if result is not None:
            result.as_strided(sizes, strides)[where] = again


def _by_aten(x: torch.Tensor, dim: int, descending: bool, stable: bool) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = aten.sort.stable(x, stable=stable, dim=dim, descending=descending)
    return values, indices


def _shapes(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)


def _one_of(which: int, both: Callable[..., Any], *given: Any) -> Any:
    """One result of a function that returns both, or None."""
    found = both(*given)
    return None if found is None else found[which]


def _operator(name: str, which: int) -> OpOverload:
    """The operator with one result."""
    run = partial(_sorted, (which == 0, which == 1))
    native, shape, aten_ = (partial(_one_of, which, one) for one in (run, _shapes, lambda *given: _by_aten(*given)))
    return operator(f"{name}{_TAKEN} -> Tensor", native, shape, aten_)


_TAKEN = "(Tensor x, int dim, bool descending, bool stable)"
SORTED = operator(
    f"sorted{_TAKEN} -> (Tensor, Tensor)", partial(_sorted, (True, True)), _shapes, lambda *given: _by_aten(*given)
)
VALUES_SORTED, INDICES_SORTED = _operator("sorted_values", 0), _operator("sorted_indices", 1)

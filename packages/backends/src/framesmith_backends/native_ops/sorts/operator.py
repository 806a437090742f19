"""Sorts on the CPU by machine code of our own.

`framesmith_backends::sorted(x, dim, descending, stable)` and, for one of its results alone, `::sorted_values` and
`::sorted_places` are the operators that plans call. Each gives what ATen's call gives, bit for bit, equal elements in
the order that they have there. See docs/design/kernels/0024-sorts.md.

Note [Ties]: ours is a stable sort. Where a stable one is not asked for, ATen's gives equal elements in an order of its
own once there are more than a few, and only what nobody can tell apart may be ours: lines in which that order shows in
what is wanted are told by our code, and sorted again by ATen's. Places of numbers of few bits are left to it at once.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from framesmith_backends.ir.dtypes import NUMBERS
from framesmith_backends.launch.once import once
from framesmith_backends.native_ops.base import operator
from framesmith_backends.native_ops.sorts.long_lines import LONG_JOB, counts_bytes, render_long_sort
from framesmith_backends.native_ops.sorts.render import GROUP, ITEMS, SLOT, SLOTS, Sort, arrays, render_sort
from framesmith_guards.torch_adapter import aten

#: Below so many elements ATen's call takes less time than ours: stable sorts, and others; of these also short lines.
FEWEST, FEWEST_LOOSE, SHORTEST_LOOSE = 2048, 4096, 3
#: Elements for each thread, at least.
GRAIN = 4096
#: Fewer lines than threads are cut, of so many elements at least.
SHORTEST_CUT = 1 << 18
#: Lines of so many elements at most are sorted by ranks, by the bytes of an element.
MOST_RANKED = {1: 64, 2: 96, 4: 112, 8: 128}
#: Bytes of a cache line.
LINE = 64
#: Of scratch there are so many bytes for each of the tensor's, or so many, at most.
MOST_TIMES, MOST_SCRATCH = 8, 1 << 26
#: Places are of 32 bits until they are stored.
MOST_PLACES = 2**31
#: Tensors of one dimension that ATen sorts by digits, too, if the least are to come first.
DEALT_BY_ATEN = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FEWEST_DEALT_BY_ATEN = 1 << 15
#: Lines of so many elements at most ATen sorts by insertion, which leaves equal ones in their order.
MOST_INSERTED = 16
#: Where ties show in places, and types and lengths of lines that mostly have none.
FEW_TIES, MOST_WITH_FEW_TIES = (torch.float32, torch.float64), 4096


def is_ours(x: torch.Tensor, dim: int, descending: bool, stable: bool, places: bool) -> bool:
    """Whether our own code may give the results, the places among them or not, and takes less time than ATen's."""
    if x.dtype not in NUMBERS or x.numel() < (FEWEST if stable else FEWEST_LOOSE) or x.shape[dim] >= MOST_PLACES:
        return False
    if not stable and x.shape[dim] < SHORTEST_LOOSE:
        return False
    if x.dim() == 1 and x.dtype in DEALT_BY_ATEN and not descending and x.numel() >= FEWEST_DEALT_BY_ATEN:
        return False
    return not places or not _may_tie(x, dim, stable, places) or _ties_are_few(x, dim)


def _may_tie(x: torch.Tensor, dim: int, stable: bool, places: bool) -> bool:
    """Whether the order of equal ones may show: see Note [Ties]."""
    if stable or x.stride(dim) == 0:  # ATen leaves what is one element as it is
        return False
    if x.shape[dim] <= MOST_INSERTED and short_lines_are_stable():
        return False
    return places or x.is_floating_point()


def _ties_are_few(x: torch.Tensor, dim: int) -> bool:
    return x.dtype in FEW_TIES and x.shape[dim] <= MOST_WITH_FEW_TIES


@functools.cache
def short_lines_are_stable() -> bool:
    """Whether this torch leaves equal ones of short lines in their order where no stable sort is asked for."""
    numbers, digits = torch.arange(1 << 8, device="cpu"), torch.arange(MOST_INSERTED, device="cpu")
    bits = numbers.view(-1, 1) >> digits.remainder(8)
    for dtype in NUMBERS:
        for count in range(2, MOST_INSERTED + 1):
            x = (bits[:, :count] & 1).to(dtype)
            for descending in (False, True):
                loose, strict = (aten.sort.stable(x, stable=stable, dim=1, descending=descending)[1]
                                 for stable in (False, True))  # fmt: skip
                if not torch.equal(loose, strict):
                    return False
    return True


class Code:
    """Machine code of a sort; it is called without the interpreter's lock."""

    def __init__(self, sort: Sort, is_long: bool) -> None:
        from framesmith_backends.launch.llvm.engine import engine_of, machine

        self.engine = engine_of("sort", (render_long_sort if is_long else render_sort)(sort, machine().target))
        kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
        self.run: Callable[..., None] = ctypes.CFUNCTYPE(None, *kinds)(self.engine.get_function_address("fs_sort"))


_Words: Any = ctypes.c_int64 * len(LONG_JOB)


@once
def code(sort: Sort, is_long: bool) -> Code:
    """Made at its first use."""
    return Code(sort, is_long)


def sort_into(x: torch.Tensor, dim: int, descending: bool, values: torch.Tensor | None, places: torch.Tensor | None,
              ties: torch.Tensor | None = None) -> None:  # fmt: skip
    """All of a tensor that has elements, and no gaps; results lie as it does.

    `ties` has a byte for each line, in the order of memory, which is cleared where the order of equal ones is not seen.
    """
    count, inner = x.shape[dim], x.stride(dim) if x.shape[dim] > 1 else 1
    lines, threads = x.numel() // count, torch.get_num_threads()
    sort = Sort(NUMBERS[x.dtype], descending, values is not None, places is not None, ties is not None, inner > 1,
                count <= MOST_RANKED[x.element_size()])  # fmt: skip
    room = _room(count)
    where = [0 if one is None else one.data_ptr() for one in (x, values, places)]
    if lines < threads and count >= SHORTEST_CUT and inner == 1 and ties is None:
        scratch = torch.empty(ITEMS * room + threads * counts_bytes(sort), dtype=torch.uint8, device="cpu")
        sizes = [0 if one is None else count * one.element_size() for one in (x, values, places)]
        for line in range(lines):
            starts = [address + line * size for address, size in zip(where, sizes, strict=True)]
            code(sort, True).run(_Words(*starts, 0, scratch.data_ptr(), 1, threads, count, 1, room), threads, threads)
        return
    tasks = lines // inner * -(-inner // GROUP)
    most = max(_most_scratch(x) // (arrays(sort) * room), 1)
    shares = min(threads, -(-x.numel() // GRAIN), tasks, most)
    scratch = torch.empty(shares * arrays(sort) * room, dtype=torch.uint8, device="cpu")
    where += [0 if ties is None else ties.data_ptr(), scratch.data_ptr()]
    code(sort, False).run(_Words(*where, tasks, shares, count, inner, room), shares, shares)


def _room(count: int) -> int:
    """Bytes of an array in scratch, for lines of so many elements."""
    return -(-count // LINE) * LINE * SLOT + LINE


def _most_scratch(x: torch.Tensor) -> int:
    return max(MOST_TIMES * x.numel() * x.element_size(), MOST_SCRATCH)


def _sorted(x: torch.Tensor, dim: int, descending: bool, stable: bool, wanted: tuple[bool, bool]
            ) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """The values and the places, those that are wanted."""
    dim %= x.dim() or 1
    if x.dim() == 0 or not is_ours(x, dim, descending, stable, wanted[1]):
        return _by_aten(x, dim, descending, stable)
    if SLOTS * _room(x.shape[dim]) > _most_scratch(x) and x.stride(dim) != 1:
        return _by_aten(x, dim, descending, stable)  # few long lines side by side
    values = torch.empty_like(x) if wanted[0] else None
    places = torch.empty_like(x, dtype=torch.int64) if wanted[1] else None
    may_tie = _may_tie(x, dim, stable, wanted[1])
    lies_as = values if values is not None else places
    assert lies_as is not None
    if x.stride() != lies_as.stride():
        x = torch.empty_like(lies_as, dtype=x.dtype).copy_(x)
    ties = None
    if may_tie:
        ties = torch.ones(x.numel() // x.shape[dim], dtype=torch.bool, device="cpu")
    sort_into(x, dim, descending, values, places, ties)
    if ties is not None and bool(ties.any()):
        _sort_again(x, dim, descending, values, places, ties)
    return values, places


def _sort_again(x: torch.Tensor, dim: int, descending: bool, values: torch.Tensor | None, places: torch.Tensor | None,
                ties: torch.Tensor) -> None:  # fmt: skip
    """Some of the lines, by ATen."""
    count, inner = x.shape[dim], x.stride(dim)
    sizes, strides = (x.numel() // (count * inner), inner, count), (count * inner, 1, inner)
    where = ties.view(sizes[:2]).nonzero(as_tuple=True)
    found = _by_aten(x.as_strided(sizes, strides)[where], 1, descending, False)
    for result, again in zip((values, places), found, strict=True):
        if result is not None:
            result.as_strided(sizes, strides)[where] = again


def _by_aten(x: torch.Tensor, dim: int, descending: bool, stable: bool) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = aten.sort.stable(x, stable=stable, dim=dim, descending=descending)
    return values, places


def sorted_both(x: torch.Tensor, dim: int, descending: bool, stable: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What lies along a dimension in order, and where it was."""
    values, places = _sorted(x, dim, descending, stable, (True, True))
    assert values is not None and places is not None
    return values, places


def sorted_values(x: torch.Tensor, dim: int, descending: bool, stable: bool) -> torch.Tensor:
    """What lies along a dimension in order."""
    values = _sorted(x, dim, descending, stable, (True, False))[0]
    assert values is not None
    return values


def sorted_places(x: torch.Tensor, dim: int, descending: bool, stable: bool) -> torch.Tensor:
    """Where what lies along a dimension in order was."""
    places = _sorted(x, dim, descending, stable, (False, True))[1]
    assert places is not None
    return places


def _shape_of_values(x: torch.Tensor, dim: int, descending: bool, stable: bool) -> torch.Tensor:
    return torch.empty_like(x)


def _shape_of_places(x: torch.Tensor, dim: int, descending: bool, stable: bool) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.int64)


def _shape_of_both(x: torch.Tensor, dim: int, descending: bool, stable: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)


_TAKEN = "(Tensor x, int dim, bool descending, bool stable)"
SORTED = operator(f"sorted{_TAKEN} -> (Tensor, Tensor)", sorted_both, _shape_of_both)
VALUES_SORTED = operator(f"sorted_values{_TAKEN} -> Tensor", sorted_values, _shape_of_values)
PLACES_SORTED = operator(f"sorted_places{_TAKEN} -> Tensor", sorted_places, _shape_of_places)

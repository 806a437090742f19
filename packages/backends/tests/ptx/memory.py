"""Memory of a device as bytes, with what a device or a careful reader would object to.

Addresses lie in one range for each space, so that a generic one has one space. Every access is checked to lie within
what is known there, to be aligned to its own size, not to read what was never written (shared and local memory), and to
be ordered after what other threads did at the same address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from ptx.races import Clock, Fault, Races

Array = np.ndarray[Any, Any]
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
#: The first addresses of spaces. A global address cut to 32 bits is in none of them.
GLOBAL, SHARED, LOCAL, PARAMETERS = 0x7F12_3400_0000, 0x400, 0x1000_0000, 0x0800_0000
#: Bytes between tensors that belong to none.
REDZONE = 1 << 16


@dataclass(slots=True)
class Space:
    """`rows` ranges of `size` bytes, one for each block or thread (global memory has one), from `base` on."""

    name: str
    base: int
    size: int
    rows: int
    unit: int
    owner: Callable[[Array], Array]
    races: Races | None
    data: Array = field(init=False)
    known: Array | None = None

    def __post_init__(self) -> None:
        self.size = -(-max(self.size, 16) // 16) * 16
        whole = np.full(self.size * self.rows // 8 + 2, 0xCDCDCDCDCDCDCDCD, np.uint64).view(np.uint8)
        start = -whole.ctypes.data % 16
        self.data = whole[start : start + self.size * self.rows]

    def elements(self, address: Array, width: int, threads: Array, vector: int = 0) -> Array:
        """Return the indices in `data` of elements of `width` bytes, for accesses of `vector` bytes."""
        vector = vector or width
        offset = address.astype(np.int64) - self.base
        odd = offset % vector != 0
        if odd.any():
            self._refuse(f"misaligned address for {vector} bytes", odd, address, threads)
        bad = self._outside(offset, vector)
        if bad.any():
            self._refuse(f"access of {vector} bytes out of bounds", bad, address, threads)
        return (self.owner(threads) * self.size + offset) // width

    def _outside(self, offset: Array, vector: int) -> Array:
        return (offset < 0) | (offset + vector > self.size)

    def _refuse(self, kind: str, bad: Array, address: Array, threads: Array) -> None:
        at = int(np.flatnonzero(bad)[0])
        raise Fault(kind, int(threads[at]), f"{self.describe(int(address[at]))} ({int(bad.sum())} threads)")

    def describe(self, address: int) -> str:
        return f"byte {address - self.base} of {self.name} memory, which has {self.size}"

    def _raced(self, found: tuple[str, Array] | None, address: Array, threads: Array) -> None:
        if found is not None:
            self._refuse(found[0], found[1], address, threads)

    def load(self, address: Array, width: int, threads: Array, clock: Clock, count: int = 1) -> list[Array]:
        """`count` neighbouring elements for each thread."""
        element = self.elements(address, width, threads, width * count)
        view = self.data.view(UNSIGNED[width])
        first = element * width // self.unit
        for k in range(max(width * count // self.unit, 1)):
            if self.known is not None:
                unknown = ~self.known[first + k]
                if unknown.any():
                    self._refuse("reads memory that was never written", unknown, address, threads)
            if self.races is not None:
                self._raced(self.races.on_read(first + k, threads, clock), address, threads)
        return [view[element + k] for k in range(count)]

    def store(self, address: Array, width: int, threads: Array, clock: Clock, values: Sequence[Array]) -> None:
        element = self.elements(address, width, threads, width * len(values))
        view = self.data.view(UNSIGNED[width])
        clock.acted[threads - clock.first] = True
        for k, value in enumerate(values):
            same = view[element + k] == value
            unit = (element + k) * width // self.unit
            for j in range(max(width // self.unit, 1)):
                if self.races is not None:
                    self._raced(self.races.on_write(unit + j, threads, clock, same, width), address, threads)
                    if self.races.late is not None:
                        clock.suspects += self._late(self.races.late, address, threads, clock)
                if self.known is not None:
                    self.known[unit + j] = True
            view[element + k] = value
            lost = view[element + k] != value
            if lost.any() and self.races is not None:
                self._refuse("data race: threads write different values at once", lost, address, threads)

    def _late(self, late: Array, address: Array, threads: Array, clock: Clock) -> list[tuple[Any, Fault]]:
        kind = "data race: writes what another thread reads, without a barrier between"
        return [(clock.at, Fault(kind, int(threads[k]), self.describe(int(address[k])))) for k in np.flatnonzero(late)]

    def update(
        self, address: Array, width: int, threads: Array, clock: Clock, change: Callable[[Array, Array], Array]
    ) -> Array:
        """Return the values before `change(there, which thread)`, applied thread by thread where they meet."""
        element = self.elements(address, width, threads)
        view = self.data.view(UNSIGNED[width])
        clock.acted[threads - clock.first] = True
        if self.races is not None:
            for j in range(max(width // self.unit, 1)):
                self._raced(self.races.on_update(element * width // self.unit + j, threads, clock), address, threads)
        before = np.empty(len(element), view.dtype)
        left = np.arange(len(element))
        while len(left):
            _, at = np.unique(element[left], return_index=True)
            now = left[at]
            before[now] = view[element[now]]
            view[element[now]] = change(before[now], now)
            left = np.delete(left, at)
        return before


class GlobalSpace(Space):
    """The tensors of a launch, and its static arrays, with red zones between.

    Bytes between the first and the last element belong to a tensor; those that overlap are one range.
    """

    __slots__ = ("ends", "names", "starts", "tensors")

    def __init__(self, tensors: Sequence[torch.Tensor], constants: dict[str, bytes], unit: int) -> None:
        spans = [_span(tensor) for tensor in tensors]
        merged: list[list[int]] = []  # spans that overlap, or share a storage's neighbourhood, keep their distances
        for start, end in sorted(set(spans)):
            if merged and start < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        at, moved = REDZONE, []
        for start, end in merged:
            at += (start - at) % 256
            moved.append((start, end, at))
            at += end - start + REDZONE
        arrays = {}
        for name, data in constants.items():
            at += -at % 256
            arrays[name] = (at, data)
            at += len(data) + REDZONE
        super().__init__("global", GLOBAL, at, 1, unit, lambda threads: np.zeros(1, np.int64), None)
        self.races = Races(self.size // unit, True)
        self.tensors = [(start, end, offset) for start, end, offset in moved if end > start]
        for start, end, offset in self.tensors:
            self.data[offset : offset + end - start] = _bytes_at(start, end - start)
        for offset, data in arrays.values():
            self.data[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        own = [(offset, offset + end - start) for start, end, offset in self.tensors]
        own += [(offset, offset + len(data)) for offset, data in arrays.values()]
        self.starts = np.array([a for a, _ in own] or [0], np.int64)
        self.ends = np.array([b for _, b in own] or [0], np.int64)
        self.names = [self._name(k, spans) for k in range(len(self.tensors))] + list(arrays)

    def _name(self, at: int, spans: Sequence[tuple[int, int]]) -> str:
        start, end, _ = self.tensors[at]
        return " and ".join(f"p{k}" for k, (a, b) in enumerate(spans) if start <= a < end and b > a)

    def address_of(self, tensor: torch.Tensor) -> int:
        here = tensor.data_ptr()
        for start, end, offset in self.tensors:
            if start <= here < end:
                return GLOBAL + offset + here - start
        return GLOBAL + here % 256  # without elements

    def constant_address(self, name: str) -> int:
        return GLOBAL + int(self.starts[self.names.index(name)])

    def _outside(self, offset: Array, vector: int) -> Array:
        owner = np.searchsorted(self.starts, offset, side="right") - 1
        return (owner < 0) | (offset + vector > self.ends[owner])

    def describe(self, address: int) -> str:
        offset = address - self.base
        distance = np.minimum(np.abs(self.starts - offset), np.abs(self.ends - offset))
        inside = (self.starts <= offset) & (offset < self.ends)
        at = int(np.argmin(np.where(inside, -1, distance)))
        size = int(self.ends[at] - self.starts[at])
        return f"byte {offset - int(self.starts[at])} of {self.names[at]}, which has {size}"

    def write_back(self) -> None:
        """To the tensors what the program made of their memory."""
        for start, end, offset in self.tensors:
            _bytes_at(start, end - start)[:] = self.data[offset : offset + end - start]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (reach + 1) * tensor.element_size()


def _bytes_at(address: int, count: int) -> Array:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))

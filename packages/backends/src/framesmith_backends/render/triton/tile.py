"""Tiles, the configurations that kernels are rendered in, and what a tile of a kernel holds and reads."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, hint, numel, surely_at_least
from framesmith_backends.render.triton.joined import Distances, Joined, joinable
from framesmith_backends.schedule.kernels.loops import accesses, memory_indices

# Sums about the mean of a part of a row, one of at most so many such parts, give those about the row's mean: where the
# two are far from each other, so are the elements from theirs, `(mean - k)^2 <= parts * variance`.
MOST_PARTS = 16
# Threads of a warp.
WARP = 32


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop, and how many of its values a program takes at once: a power of two."""

    var: Var
    block: int

    @property
    def count(self) -> Size:
        """The number of blocks of the loop."""
        return (self.var.size + (self.block - 1)) // self.block


@dataclass(frozen=True, slots=True)
class Tile:
    """At most two axes, more where it is flat, with the lanes along the last one.

    `flat`: its elements are in one row, of which the axes' numbers are quotients and rest; if one of its axes is the
    row's, all are. Triton spreads threads over two dimensions as the memory that is read is contiguous, and along the
    first one where none of it is.
    """

    axes: tuple[Axis, ...] = ()
    flat: bool = False

    @property
    def variables(self) -> tuple[Var, ...]:
        return tuple(axis.var for axis in self.axes)

    @property
    def elements(self) -> int:
        return math.prod(axis.block for axis in self.axes)

    def of(self, var: Var) -> Axis | None:
        return next((axis for axis in self.axes if axis.var is var), None)

    def count(self, var: Var) -> Size:
        """The number of programs along the loop."""
        axis = self.of(var)
        return var.size if axis is None else axis.count

    def lanes(self, var: Var) -> str:
        """The numbers from 0 along that axis."""
        if self.flat:
            at = self.variables.index(var)
            behind = Tile(self.axes[at + 1 :]).elements
            quotient = f" // {behind}" if behind > 1 else ""
            return f"(tl.arange(0, {self.elements}){quotient}{f' % {self.axes[at].block}' if at else ''})"
        axes = [":" if axis.var is var else "None" for axis in self.axes]
        (block,) = (axis.block for axis in self.axes if axis.var is var)
        return f"tl.arange(0, {block})" + (f"[{', '.join(axes)}]" if len(axes) > 1 else "")

    def shape(self, variables: Collection[Var]) -> str | None:
        """The shape of what differs along those variables; None for a single value."""
        if not any(axis.var in variables for axis in self.axes):
            return None
        return str([self.elements] if self.flat else [a.block if a.var in variables else 1 for a in self.axes])


@dataclass(frozen=True, slots=True)
class Config:
    """The tile of a program, its warps, and whether reads that take each element once leave out L1, for other reads."""

    tile: Tile
    warps: int
    past_l1: bool = False

    def text(self) -> str:
        blocks = "x".join(str(axis.block) for axis in self.tile.axes) or "1"
        return f"{blocks}, {self.warps} warps{', once past L1' if self.past_l1 else ''}"


def fixed(size: Size) -> int:
    """A size of a kernel whose sizes are all constants."""
    assert isinstance(size, int)
    return size


def covering(size: Size) -> int:
    """The power of two that covers the size, by its hint."""
    return 1 << max(hint(size) - 1, 0).bit_length()


def holds_row(kernel: Kernel, tile: Tile) -> bool:
    """Whether the tile spans the whole row, which is then read once."""
    return {axis.var for axis in tile.axes if surely_at_least(axis.block, axis.var.size)}.issuperset(kernel.row)


def joined(kernel: Kernel, tile: Tile, number: int) -> Joined:
    """The reductions of that pass and the next, if they are one; () if not, or if the tile holds what both read."""
    if holds_row(kernel, tile):
        return ()
    how = joinable(kernel, number)
    return () if how and isinstance(how[0], Distances) and part_of_row(kernel, tile) is None else how


def row_axes(kernel: Kernel, tile: Tile) -> tuple[Axis, ...]:
    """The axes that go along the row: several where it is gone through by several loops, all but the first whole."""
    return tuple(axis for axis in tile.axes if axis.var in kernel.row)


def part_of_row(kernel: Kernel, tile: Tile) -> tuple[int, int] | None:
    """The end along the row's first axis of a part whose mean is near enough, and how many elements it has; or None.

    The part has all of the other axes, and the first step of loops that are not in the tile.
    """
    axes, count = row_axes(kernel, tile), numel(v.size for v in kernel.row)
    if not axes or not isinstance(count, int) or not isinstance(axes[0].var.size, int):
        return None
    beside = hint(numel(axis.var.size for axis in axes[1:]))
    wanted = -(-count // (MOST_PARTS * beside))
    end = min(-(-wanted // axes[0].block) * axes[0].block, axes[0].var.size)
    return (end, end * beside) if end >= wanted else None


def has_strided_reads(kernel: Kernel, tile: Tile) -> bool:
    """Whether neighbouring lanes access memory with a stride above 1, and no axis of the tile has stride 1."""
    for ix, _ in memory_indices(kernel):
        steps = [index.coefficient(ix, var) for var in tile.variables]
        if any(step not in (0, 1, None) for step in steps[-1:]) and 1 not in steps:
            return True
    return False


def reaches(kernel: Kernel) -> bool:
    """Whether an index in memory, or a part of it, may be beyond 32 bits."""
    return any(_reach(ix) >= 1 << 31 for ix, _ in accesses(kernel)) or _as_size(kernel.points) >= 1 << 31


def _reach(ix: Ix) -> int:
    total = _as_size(ix.const)
    for atom, k in ix.terms:
        part = _as_size(atom.size) if isinstance(atom, (Var, index.Indirect)) else _reach(atom.base)
        total += _as_size(k) * part
    return total


def _as_size(size: Size) -> int:
    """The number without its sign; of what changes between calls one that is too large."""
    return abs(size) if isinstance(size, int) else 1 << 31

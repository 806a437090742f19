"""A static model of the memory traffic of a CUDA kernel, beside the least that any kernel would have.

Memory is read and written in sectors of 32 bytes. A program asks for every sector that it touches, whatever it needs of
it: what is read across rows shows. Counted once are what a program holds from one pass to the next, or over the rows
that it takes in turn; what it reads again while all programs at work fit into the cache; what programs beside each
other read of a tensor at two positions of their code; and small reads that many programs share. The least is every
sector with an element that is read or written, once.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Const, Expr, Index, Op, loads, variables
from framesmith_backends.ir.kernel import Kernel, RowPass, Store
from framesmith_backends.ir.ops import OPS
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Div, Ix, Mod, Var
from framesmith_backends.ir.symbolic.size import Sym
from framesmith_backends.render.triton.tile import Tile, holds_row, joined
from framesmith_backends.render.triton.tile_rules import ENOUGH_PROGRAMS, SECTOR, tile_of

CACHE, SMALL = 32 << 20, 4 << 20
#: So many programs stand for all, where some have less to do than others; so many side by side share what they read.
FEW_PROGRAMS, BESIDE = 256, 24
#: Kernels of more points than this are not modelled.
MOST_POINTS = 1 << 25

Values = dict[Var, "np.ndarray"]


@dataclass(frozen=True)
class Traffic:
    """Bytes that the model has for a kernel, and the least."""

    bytes: int
    least: int


@dataclass(frozen=True)
class Access:
    """A place that is read or written at every point, where the guard holds."""

    buffer: str
    ix: Ix
    size: int
    guard: Expr | None
    written: bool

    @property
    def variables(self) -> frozenset[Var]:
        inside = variables(self.guard) if self.guard is not None else frozenset()
        return index.variables(self.ix) | inside


def why_not_modelled(kernel: Kernel) -> str | None:
    """Return the reason why the kernel is not modelled, or None."""
    if any(isinstance(v.size, Sym) for v in (*kernel.outer, *kernel.row)):
        return "dynamic shapes"
    if math.prod(int(v.size) for v in (*kernel.outer, *kernel.row)) > MOST_POINTS:
        return "too many points"
    if any(index.indirect_atoms(one.ix) for p in kernel.passes for one in accesses(p)):
        return "data-dependent indices"
    return None


def accesses(one: RowPass) -> Iterator[Access]:
    """Those of a pass, each place once."""
    found: dict[Access, None] = {}
    for load in loads(*one.values):
        found[Access(load.source, load.index[0], DTYPES[load.dtype].itemsize, load.guard, False)] = None
    for store in (*one.before, *one.stores):
        found[_write(store)] = None
    yield from found


def _write(store: Store) -> Access:
    return Access(store.buffer, store.index, DTYPES[store.value.dtype].itemsize, None, True)


def loops_of_programs(kernel: Kernel) -> list[Var]:
    """The loops of which each program has a point, or a block of points."""
    return [v for v in kernel.outer if v not in kernel.down]


@dataclass(frozen=True)
class Group:
    """Accesses of a program to a buffer by the same outer loops: sectors in common are asked for once."""

    buffer: str
    written: bool
    outer: frozenset[Var]


def modelled(kernel: Kernel) -> Traffic:
    """The traffic of a kernel that `why_not_modelled` has nothing against."""
    tile = tile_of(kernel)
    passes = [*(list(some) for some in _passes(kernel, tile)), [*map(_write, kernel.after)]]
    groups: dict[Group, list[Access]] = {}
    for access in dict.fromkeys(itertools.chain(*passes)):
        outer = access.variables.intersection(loops_of_programs(kernel))
        groups.setdefault(Group(access.buffer, access.written, outer), []).append(access)
    once = {group: _requested(kernel, tile, group, found) for group, found in groups.items()}
    total = sum(once.values())
    if not holds_row(kernel, tile) and total * min(1.0, ENOUGH_PROGRAMS / _programs(kernel, tile)) > CACHE:
        for group, found in groups.items():
            again = max(sum(access in some for some in passes) for access in found) - 1
            total += 0 if group.written else again * once[group]
    return Traffic(total, _least(kernel, [access for found in groups.values() for access in found]))


def _passes(kernel: Kernel, tile: Tile) -> Iterator[Iterator[Access]]:
    """The accesses of each pass; those of two passes that are written as one together."""
    joined_to = -1
    for number, one in enumerate(kernel.passes):
        if number == joined_to:
            continue
        if joined(kernel, tile, number):
            joined_to = number + 1
            yield itertools.chain(accesses(one), accesses(kernel.passes[joined_to]))
        else:
            yield accesses(one)


def _programs(kernel: Kernel, tile: Tile) -> int:
    return math.prod(_parts(v, tile) for v in loops_of_programs(kernel))


def _parts(var: Var, tile: Tile) -> int:
    axis = tile.of(var)
    return int(var.size if axis is None else axis.count)


def _requested(kernel: Kernel, tile: Tile, group: Group, found: Sequence[Access]) -> int:
    """Bytes of the sectors that all programs ask for; what they share counts once if it is small."""
    loops = loops_of_programs(kernel)
    shared = math.prod(_parts(v, tile) for v in loops if v not in group.outer)
    different = math.prod(_parts(v, tile) for v in loops if v in group.outer)
    inner = range(1, max(different - 1, 1))
    differ = _has_tails(kernel, tile) or any(access.guard is not None for access in found)
    among = _some(inner, FEW_PROGRAMS if differ else 1)
    typical = sum(_asked(kernel, tile, group, found, at) for at in among) / max(len(among), 1)
    ends = sum(_asked(kernel, tile, group, found, at) for at in {0, different - 1})
    start = max(different - BESIDE, 0) // 2
    beside = range(start, min(start + BESIDE, different))
    once = int((ends + typical * len(inner)) * _shared(kernel, tile, group, found, beside)) * SECTOR
    return once if once <= SMALL else once * shared


def _shared(kernel: Kernel, tile: Tile, group: Group, found: Sequence[Access], programs: range) -> float:
    """Return the share of those programs' sectors that is left when common ones of two accesses count once."""
    if len(found) == 1 or group.written:
        return 1.0
    asked = sum(_asked(kernel, tile, group, found, at) for at in programs)
    separate, touched = 0, []
    for access in found:
        sectors = [_sectors(kernel, tile, group, [access], at) for at in programs]
        separate += sum(some.size for some in sectors)
        touched.append(np.unique(np.concatenate(sectors)))
    together = np.unique(np.concatenate(touched)).size / max(sum(some.size for some in touched), 1)
    return min(1.0, separate * together / max(asked, 1))


def _some(programs: range, many: int) -> Sequence[int]:
    """So many of them, in no order, or all; the same each time."""
    return programs if len(programs) <= many else random.Random(0).sample(programs, many)


def _has_tails(kernel: Kernel, tile: Tile) -> bool:
    """Whether some programs have fewer points than others."""
    return any(int(axis.var.size) % axis.block for axis in tile.axes if axis.var in loops_of_programs(kernel))


def _asked(kernel: Kernel, tile: Tile, group: Group, found: Sequence[Access], number: int) -> int:
    """Return the number of sectors that one program touches."""
    return int(_sectors(kernel, tile, group, found, number).size)


def _sectors(kernel: Kernel, tile: Tile, group: Group, found: Sequence[Access], number: int) -> np.ndarray:
    """The sectors that one program touches: that of the number among those that differ."""
    outer: Values = {}
    for var in reversed([v for v in kernel.outer if v in group.outer]):
        axis, parts = tile.of(var), _parts(var, tile)
        here, number = number % parts, number // parts
        block = 1 if axis is None else axis.block
        outer[var] = np.arange(here * block, min((here + 1) * block, int(var.size)))
    touched = []
    for access in found:
        inner = {v: np.arange(int(v.size)) for v in (*kernel.down, *kernel.row) if v in access.variables}
        touched.append(_offsets(access, outer | inner) * access.size // SECTOR)
    return np.unique(np.concatenate(touched))


def _least(kernel: Kernel, found: Sequence[Access]) -> int:
    """Bytes of the sectors that are read, and of those written, each once."""
    total = 0
    for buffer, written in sorted({(a.buffer, a.written) for a in found}):
        mine = [a for a in found if (a.buffer, a.written) == (buffer, written)]
        offsets = [_all_offsets(kernel, a) * a.size // SECTOR for a in mine]
        touched = np.zeros(max((int(p.max()) for p in offsets if p.size), default=-1) + 1, dtype=bool)
        for some in offsets:
            touched[some] = True
        total += int(touched.sum()) * SECTOR
    return total


def _all_offsets(kernel: Kernel, access: Access) -> np.ndarray:
    return _offsets(access, {v: np.arange(int(v.size)) for v in (*kernel.outer, *kernel.row) if v in access.variables})


def _offsets(access: Access, ranges: Values) -> np.ndarray:
    """Offsets of the points where the guard holds."""
    values = dict(zip(ranges, np.meshgrid(*ranges.values(), indexing="ij", sparse=True), strict=True))
    offsets = _of_index(access.ix, values)
    if access.guard is not None:
        holds = _of_value(access.guard, values)
        if holds is not None:
            offsets, holds = np.broadcast_arrays(offsets, holds)
            return offsets[holds]
    return np.asarray(offsets).reshape(-1)


def _of_index(ix: Ix, values: Values) -> np.ndarray:
    total = np.asarray(ix.const, dtype=np.int64)
    for atom, k in ix.terms:
        if isinstance(atom, Var):
            part = values[atom]
        else:
            assert isinstance(atom, (Div, Mod))
            base = _of_index(atom.base, values)
            part = base // atom.divisor if isinstance(atom, Div) else base % atom.divisor
        total = total + part * k
    return total


def _of_value(e: Expr, values: Values) -> np.ndarray | None:
    """Return the value computed from loop variables; None for a data-dependent one."""
    if isinstance(e, Const):
        return np.asarray(e.value)
    if isinstance(e, Index):
        return _of_index(e.ix, values)
    if not isinstance(e, Op):
        return None
    parts = [part for a in e.args if (part := _of_value(a, values)) is not None]
    if len(parts) < len(e.args):
        return None
    found: torch.Tensor = OPS[e.name].meaning(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))
    return found.numpy()

"""The order of accesses of threads; those in no order are data races.

Barriers of a block order everything that its threads did before; `bar.warp.sync` what the lanes did that take part.
Other instructions that lanes of a warp do together (`shfl.sync`, votes) gather them, but promise nothing of what they
wrote: only what they read before is over, as far as a write behind goes. Lockstep orders nothing.

Several threads may write the same bits in accesses of the same bytes: which of them came last makes no difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NOBODY, SEVERAL = -1, -2
LANES = 32
#: So many writes of the same are remembered before those that a barrier has ordered are forgotten.
MOST_REPEATED = 1 << 20


class Fault(Exception):
    """Something that a device would end the program for, or may compute wrongly by; `thread` is counted in the grid."""

    def __init__(self, kind: str, thread: int, where: str) -> None:
        super().__init__(f"{kind}: {where}")
        self.kind, self.thread, self.where = kind, thread, where


class Meetings:
    """When lanes of warps last met: whole warps, and pairs of lanes where only some took part."""

    def __init__(self, warps: int, started: int) -> None:
        self.whole = np.full(warps, started, np.int32)
        self.pairs: Array | None = None

    def meet(self, active: Array, masks: Array | None, now: int) -> None:
        """`active` are threads from the first on; `masks` which lanes take part, for each; None for all of a warp."""
        if masks is None:
            self.whole[active // LANES] = now
            return
        if self.pairs is None:
            self.pairs = np.zeros((len(self.whole) * LANES, LANES), np.int32)
        taking = (masks[:, None] >> np.arange(LANES) & 1).astype(bool)
        whole = self.pairs.reshape(-1, LANES, LANES)[active // LANES]  # [active, lane, what it knows of another]
        known = np.where(taking[:, :, None], whole, 0).max(1)
        self.pairs[active] = np.where(taking, now, known)

    def order(self, mine: Array, theirs: Array, when: Array) -> Array:
        """Whether what `theirs` did then is before what `mine`, of the same warp, does now."""
        found = when < self.whole[mine // LANES]
        if self.pairs is not None:
            found |= when < self.pairs[mine, theirs % LANES]
        return found


@dataclass(slots=True)
class Clock:
    """The order of accesses: the instruction's number, and when blocks and warps last met.

    `first` is the first thread of those that run, `block` how many threads a block has. Lanes that have `met` see each
    other's writes, those that `came` together have read what they read. `acted` are the threads that wrote
    or exchanged anything; `suspects` faults that are none if those who read late did not.
    """

    block: int
    first: int
    blocks_met: Array
    met: Meetings
    came: Meetings
    acted: Array
    now: int = 1
    at: Any = None
    suspects: list[tuple[Any, Fault]] = field(default_factory=list)

    def meet(self, active: Array, masks: Array | None, memory: bool) -> None:
        """Lanes do something together; `memory` says whether it orders their writes."""
        self.came.meet(active, masks, self.now)
        if memory:
            self.met.meet(active, masks, self.now)

    def unordered(self, other: Array, when: Array, thread: Array, by: Meetings | None = None) -> Array:
        """Whether what `other` did, of the same block, may be at the same time as what `thread` does now."""
        mine, theirs = thread - self.first, other - self.first
        free = self._beside(mine, theirs) & (when >= self.blocks_met[mine // self.block]) & (other != thread)
        at = np.flatnonzero(free & (mine // LANES == theirs // LANES))
        free[at] = ~(by or self.met).order(mine[at], theirs[at], when[at])
        return free

    def concurrent(self, other: Array, when: Array, thread: Array) -> Array:
        """The same, where `other` may be of any block, or nobody."""
        here = self._beside(thread - self.first, other - self.first)
        return (other != NOBODY) & (~here | self.unordered(other, when, thread))

    def _beside(self, mine: Array, theirs: Array) -> Array:
        found = (theirs >= 0) & (theirs < len(self.acted)) & (theirs // self.block == mine // self.block)
        return np.asarray(found)


class Races:
    """Of each unit of memory who wrote and read it last, and when; and which blocks ever did.

    `other` is a second one who read, `twin` one who wrote the same as the writer: of another warp if there is any.
    """

    def __init__(self, units: int, across: bool) -> None:
        def nobody() -> Array:
            return np.full(units, NOBODY, np.int32)

        def never() -> Array:
            return np.zeros(units, np.int32)

        self.writer, self.twin, self.reader, self.other = nobody(), nobody(), nobody(), nobody()
        self.written, self.repeated, self.read, self.read_other = never(), never(), never(), never()
        #: When the bits were last written that are there, by whom also, and in how many bytes at once.
        self.since, self.width = never(), np.zeros(units, np.uint8)
        self.repeats: list[tuple[Array, Array, int]] = []
        self.kept = 0
        self.across = across
        #: In global memory, where the last write was over what others of the block read without a barrier. Where a
        #: tensor is smaller than a block, all its threads read it, and only those go on that write.
        self.late: Array | None = None
        if across:
            self.writers, self.readers, self.updaters = nobody(), nobody(), nobody()
            self.readers_before = nobody()
        self.updater, self.updated = nobody(), never()

    def on_read(self, unit: Array, thread: Array, clock: Clock) -> tuple[str, Array] | None:
        bad = clock.unordered(self.writer[unit], self.written[unit], thread)
        if self.across:
            block = (thread // clock.block).astype(np.int32)
            bad |= _of_others(self.writers[unit], block)
        if bad.any():
            at = np.flatnonzero(bad)
            bad[at] = ~self._sees(unit[at], thread[at], clock)
        bad |= clock.unordered(self.updater[unit], self.updated[unit], thread)
        if self.across:
            bad |= _of_others(self.updaters[unit], block)
            _note(self.readers, unit, block)
        _read_last(self.reader, self.read, self.other, self.read_other, unit, thread, clock)
        return ("data race: reads what another thread wrote, without a barrier between", bad) if bad.any() else None

    def on_write(
        self, unit: Array, thread: Array, clock: Clock, same: Array, width: int
    ) -> tuple[str, Array] | None:  # fmt: skip
        """`same` says where the written value is the present one, which equals no write."""
        writer, written = self.writer[unit], self.written[unit]
        free = clock.concurrent(writer, written, thread)
        twin = same & free & (self.width[unit] == width)
        bad = clock.unordered(writer, written, thread) & ~twin
        bad |= clock.unordered(self.twin[unit], self.repeated[unit], thread) & ~(same & (self.width[unit] == width))
        bad |= clock.unordered(self.updater[unit], self.updated[unit], thread)
        known = same & (self.read[unit] >= self.since[unit])
        late = clock.unordered(self.reader[unit], self.read[unit], thread, clock.came) & ~known
        known = same & (self.read_other[unit] >= self.since[unit])
        late |= clock.unordered(self.other[unit], self.read_other[unit], thread, clock.came) & ~known
        self.late = late if self.across and late.any() else None
        bad |= late & (not self.across)
        if self.across:
            block = (thread // clock.block).astype(np.int32)
            bad |= _of_others(self.writers[unit], block) & ~twin
            bad |= _of_others(self.readers[unit], block) & ~twin
            bad |= _of_others(self.readers_before[unit], block) | _of_others(self.updaters[unit], block)
            _note(self.writers, unit, block)
        self._write(unit, thread, clock, same, twin, width)
        return (
            ("data race: writes what another thread reads or writes, without a barrier between", bad)
            if bad.any()
            else None
        )

    def on_update(self, unit: Array, thread: Array, clock: Clock) -> tuple[str, Array] | None:
        """For atomic operations, which are in no order among themselves."""
        bad = clock.unordered(self.writer[unit], self.written[unit], thread)
        bad |= clock.unordered(self.twin[unit], self.repeated[unit], thread)
        bad |= clock.unordered(self.reader[unit], self.read[unit], thread, clock.came)
        bad |= clock.unordered(self.other[unit], self.read_other[unit], thread, clock.came)
        if self.across:
            block = (thread // clock.block).astype(np.int32)
            for theirs in (self.readers[unit], self.writers[unit]):
                bad |= _of_others(theirs, block)
            _note(self.updaters, unit, block)
        self.updater[unit] = thread
        self.updated[unit] = clock.now
        return ("data race: an atomic operation beside a plain one", bad) if bad.any() else None

    def _write(self, unit: Array, thread: Array, clock: Clock, same: Array, twin: Array, width: int) -> None:
        """Take down who writes: in the place of the last writer, or beside it where both write the same."""
        if self.across:
            changed = unit[~same & (self.readers[unit] != NOBODY)]
            self.readers_before[changed], self.readers[changed] = self.readers[changed], NOBODY
        new = ~twin
        first, by = unit[new], thread[new]
        self.since[unit[~same]] = clock.now
        gone = ~clock.concurrent(self.twin[first], self.repeated[first], by)
        self.twin[first[gone]] = NOBODY
        self.writer[first], self.written[first], self.width[first] = by, clock.now, width
        also = self.writer[unit] != thread
        if not also.any():
            return
        unit, thread = unit[also], thread[also]
        far = thread // LANES != self.writer[unit] // LANES
        for some in (~far & (self.twin[unit] == NOBODY), far):
            self.twin[unit[some]], self.repeated[unit[some]] = thread[some], clock.now
        self.repeats.append((unit, thread, clock.now))
        self.kept += len(unit)
        if not self.across and self.kept > MOST_REPEATED:
            least = int(clock.blocks_met.min())
            self.repeats = [one for one in self.repeats if one[2] >= least]
            self.kept = sum(len(units) for units, _, _ in self.repeats)

    def _sees(self, unit: Array, thread: Array, clock: Clock) -> Array:
        """Whether the thread has written the bits itself that are there, or is behind another who has."""
        found = ~clock.concurrent(self.writer[unit], self.written[unit], thread)
        found |= (self.twin[unit] != NOBODY) & ~clock.concurrent(self.twin[unit], self.repeated[unit], thread)
        for units, threads, when in reversed(self.repeats):
            left = np.flatnonzero(~found & (self.since[unit] <= when))
            if not len(left):
                break
            mine, theirs = np.nonzero(unit[left][:, None] == units) if len(left) < 64 else _joined(unit[left], units)
            ordered = ~clock.concurrent(threads[theirs], np.full(len(theirs), when, np.int32), thread[left[mine]])
            found[left[mine[ordered]]] = True
        return found


def _joined(ones: Array, others: Array) -> tuple[Array, Array]:
    """Return the indices of equal numbers, each of the first with each of the second."""
    order = np.argsort(others, kind="stable")
    low, high = (np.searchsorted(others[order], ones, side) for side in ("left", "right"))  # type: ignore[call-overload]
    mine = np.repeat(np.arange(len(ones)), high - low)
    within = np.arange(len(mine)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
    return mine, order[low[mine] + within]


def _of_others(theirs: Array, block: Array) -> Array:
    return (theirs != NOBODY) & (theirs != block)


def _note(blocks: Array, unit: Array, block: Array) -> None:
    known = blocks[unit]
    blocks[unit] = np.where((known == NOBODY) | (known == block), block, SEVERAL)
    also = (blocks[unit] != block) & (blocks[unit] != SEVERAL)
    if also.any():
        blocks[unit[also]] = SEVERAL


def _read_last(
    last: Array, when: Array, other: Array, when_other: Array, unit: Array, thread: Array, clock: Clock
) -> None:
    """The thread becomes the last one; who was it becomes the other, unless that one's warp says more."""
    before = last[unit]
    changed = (before != thread) & (before != NOBODY)
    if changed.any():
        moved, by, gone = unit[changed], thread[changed], before[changed]
        kept = clock.unordered(other[moved], when_other[moved], by) & (gone // LANES == by // LANES)
        kept &= other[moved] // LANES != by // LANES
        moved, gone = moved[~kept], gone[~kept]
        other[moved], when_other[moved] = gone, when[moved]
    last[unit] = thread
    when[unit] = clock.now
    also = last[unit] != thread
    if also.any():
        far = also & (last[unit] // LANES != thread // LANES)
        for some in (also, far):
            other[unit[some]], when_other[unit[some]] = thread[some], clock.now

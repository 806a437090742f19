"""Instructions of the lanes of a warp together, which wait for each other.

From compute capability 7.0 on lanes go on by themselves, and only instructions with `.sync` gather them: those that the
mask of lanes names and that have not ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from ptx.program import Instruction, PtxError
from ptx.races import LANES, Fault

if TYPE_CHECKING:
    from ptx.threads import Threads

Array = np.ndarray[Any, Any]
#: Held are threads at an instruction that several of a warp do together, until the others come.
RUNNING, WAITING, DONE, HELD = 0, 1, 2, 3
TOGETHER = ("shfl", "vote", "redux", "ldmatrix", "stmatrix", "mma")
#: Those that say in their last operand which lanes take part; in the others all do.
CHOOSING = ("shfl", "vote", "redux", "bar", "barrier")
ALL = (1 << LANES) - 1


def is_together(one: Instruction) -> bool:
    return one.parts[0] in TOGETHER or "warp" in one.parts


def _chosen(t: Threads, one: Instruction) -> Array | None:
    """The mask of each active thread; None where all lanes take part."""
    if one.parts[0] not in CHOOSING:
        return None
    found = t.read(one.operands[-1], "b32").astype(np.int64)
    return None if (found == ALL).all() else np.broadcast_to(found, t.active.shape)


def gathered(t: Threads, one: Instruction, at: int) -> bool:
    """Leave those lanes active that all others of their masks have joined, and note that they meet; hold the others."""
    if not t.whole:
        t.pc[t.active] = at
        t.active = np.flatnonzero((t.pc == at) & ((t.state == RUNNING) | (t.state == HELD)))
        t.whole = len(t.active) == len(t.pc)
    if t.mask(one) is not None:
        raise PtxError("what lanes do together, under a predicate")
    masks = _chosen(t, one)
    if not t.whole or masks is not None:
        masks = _joined(t, one, at, masks)
    t.clock.meet(t.active, masks, "warp" in one.parts)
    return len(t.active) > 0


def _joined(t: Threads, one: Instruction, at: int, masks: Array | None) -> Array | None:
    """Hold who waits for others; for those left active, the lanes that they meet, None if all of their warps."""
    lane = np.int64(1) << np.arange(LANES)
    here = np.zeros(len(t.pc), bool)
    here[t.active] = True
    present = (here.reshape(-1, LANES) * lane).sum(1)[t.active // LANES]
    ended = ((t.state == DONE).reshape(-1, LANES) * lane).sum(1)[t.active // LANES]
    asked = np.full(len(t.active), ALL, np.int64) if masks is None else masks
    ready = asked & ~(present | ended) == 0
    if masks is not None:
        _agree(t, one, masks, ready)
    t.pc[t.active] = at
    t.state[t.active] = np.where(ready, RUNNING, HELD)
    t.active, meeting = t.active[ready], (asked & present)[ready]
    t.whole = len(t.active) == len(t.pc)
    return None if (meeting == ALL).all() else meeting


def _agree(t: Threads, one: Instruction, masks: Array, ready: Array) -> None:
    own = masks >> (t.active % LANES) & 1
    if not own.all():
        raise Fault("a lane that its mask does not name", int(t.numbers[t.active[own == 0][0]]), one.text)
    of_all = np.full(len(t.pc), -1, np.int64)
    of_all[t.active] = masks
    others = of_all.reshape(-1, LANES)[t.active // LANES]  # [active, lane]
    named = (masks[:, None] >> np.arange(LANES) & 1).astype(bool)
    odd = (named & (others >= 0) & (others != masks[:, None])).any(1) & ready
    if odd.any():
        raise Fault("lanes meet with different masks", int(t.numbers[t.active[odd][0]]), one.text)


def shuffle(t: Threads, one: Instruction, at: int) -> bool:
    target, source, by, clamp, _ = one.operands
    target, _, valid = target.partition("|")
    t.read(source, "b32")  # as much of it as there is
    whole = t.registers[source]
    lane = t.active % 32
    offset = np.broadcast_to(t.read(by, "s32"), t.active.shape).astype(np.int64)
    limits = np.broadcast_to(t.read(clamp, "u32"), t.active.shape).astype(np.int64)
    segment, bound = limits >> 8 & 31, limits & 31
    least, most = lane & segment, (lane & segment) | (bound & ~segment)
    how = one.parts[2]
    wanted = {"bfly": lane ^ offset, "up": lane - offset, "down": lane + offset, "idx": least | (offset & ~segment)}[
        how
    ]
    inside = wanted >= most if how == "up" else wanted <= most
    chosen = t.active - lane + np.where(inside, wanted, lane)
    t.clock.acted[t.active] = True
    running = np.zeros(len(t.pc), bool)
    running[t.active] = True
    masks = _chosen(t, one)
    if not running[chosen].all() or (masks is not None and not (masks >> (chosen % LANES) & 1).all()):
        raise Fault("a shuffle from a thread that is not there", int(t.numbers[t.active[0]]), one.text)
    t.write(target, whole[chosen])
    if valid:
        t.write(valid, inside)
    return True


def _by_warp(t: Threads, values: Array) -> Array:
    """Rows of 32 of what the active threads have; all of a warp have to be there."""
    if len(t.active) % 32 or (t.active.reshape(-1, 32) % 32 != np.arange(32)).any():
        raise PtxError("a part of a warp")
    return np.broadcast_to(values, t.active.shape).reshape(-1, 32)


def vote(t: Threads, one: Instruction, at: int) -> bool:
    given = _by_warp(t, t.read(one.operands[1], "pred"))
    if "ballot" in one.parts:
        found = (given.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)
    else:
        found = given.any(1) if "any" in one.parts else given.all(1)
    t.write(one.operands[0], np.repeat(found, 32))
    return True


def reduce(t: Threads, one: Instruction, at: int) -> bool:
    kind, what = one.parts[-1], one.parts[2]
    given = _by_warp(t, t.read(one.operands[1], kind))
    rows = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    t.write(
        one.operands[0], np.repeat((rows | {"xor": np.bitwise_xor})[what].reduce(given, axis=1).astype(given.dtype), 32)
    )
    return True

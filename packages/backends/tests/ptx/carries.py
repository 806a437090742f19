"""Sums and products of integers that leave a carry, or a borrow, to the next one of the thread.

What a sum leaves a difference cannot take, nor the other way about: devices keep a borrow as the carry's opposite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from ptx.instructions import ROWS
from ptx.program import WIDTHS, Instruction, PtxError

if TYPE_CHECKING:
    from ptx.threads import Threads

Array = np.ndarray[Any, Any]
#: Values of a thread's flag, plus one where it is set.
NOTHING, CARRY, BORROW = 0, 2, 4
TAKING = {"addc": "add", "subc": "sub", "madc": "mad"}


def is_carried(one: Instruction) -> bool:
    return one.parts[0] in TAKING or "cc" in one.parts


def compute(t: Threads, one: Instruction) -> None:
    """add, sub and mad with `.cc`, and addc, subc and madc."""
    name, *ways, kind = one.parts
    base, bits = TAKING.get(name, name), WIDTHS.get(kind, 0)
    halves = [way for way in ways if way in ("lo", "hi")]
    if kind not in ("u32", "s32", "u64", "s64") or len(ways) != len(halves) + ("cc" in ways):
        raise PtxError("unknown form of sum with a carry")
    if base not in ("add", "sub", "mad") or len(halves) != (base == "mad"):
        raise PtxError("unknown form of sum with a carry")
    target, *operands = one.operands
    *factors, last = operands
    if base == "mad":
        multiplied = ROWS["mul"](("mul", *halves, kind), [t.read(o, kind) for o in factors])
        first = np.asarray(multiplied).view(f"u{bits // 8}")
    else:
        first = t.read(*factors, f"u{bits}")
    first = np.broadcast_to(first, t.active.shape)
    left = BORROW if base == "sub" else CARRY
    taken = _taken(t, left, t.mask(one)) if name in TAKING else np.zeros(t.active.shape, bool)
    found, over = _joined(base, first, t.read(last, f"u{bits}"), taken)
    t.write(target, found, t.mask(one))
    if "cc" in ways:
        where = t.mask(one)
        chosen = slice(None) if where is None else where
        t.flags[t.active[chosen]] = (left + over)[chosen]


def _taken(t: Threads, left: int, where: Array | None) -> Array:
    flags = t.flags[t.active]
    known = flags & ~1 == left
    if not (known if where is None else known[where]).all():
        raise PtxError(f"takes a {'borrow' if left == BORROW else 'carry'} that nothing has left")
    return (flags & 1).astype(bool)


def _joined(base: str, first: Array, second: Array, taken: Array) -> tuple[Array, Array]:
    """The sum or difference with what was taken, and whether it is over the highest bit."""
    one = taken.astype(first.dtype)
    if base == "sub":
        return first - second - one, (first < second) | ((first == second) & taken)
    found = first + second
    return found + one, (found < first) | (found + one < found)

"""Matmuls of small matrices whose elements lie in the registers of a warp, and the loads for them.

In each fragment a lane has the row `lane // 4` and the columns from `lane % 4` times their number in a register on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from ptx.numbers import of_bf16
from ptx.program import Instruction, PtxError

if TYPE_CHECKING:
    from ptx.threads import Threads

Array = np.ndarray[Any, Any]
LANES = np.arange(32)
ROW, COLUMN = LANES // 4, LANES % 4


def _warps(t: Threads) -> int:
    if len(t.active) % 32 or (t.active.reshape(-1, 32) % 32 != LANES).any():
        raise PtxError("a part of a warp")
    return len(t.active) // 32


def load(t: Threads, one: Instruction, at: int) -> bool:
    """ldmatrix: eight lanes give the rows of each matrix of 8 x 8 elements of 16 bits."""
    if t.mask(one) is not None or "m8n8" not in one.parts or one.parts[-1] != "b16":
        raise PtxError("unknown form of ldmatrix")
    from ptx.operations import _check_nothing_pending

    registers = t.elements(one.operands[0])
    warps = _warps(t)
    address = t.address(one.operands[1]).reshape(warps, 32)
    threads = t.numbers[t.active].reshape(warps, 32)
    for k, register in enumerate(registers):
        rows = address[:, 8 * k : 8 * k + 8].reshape(-1)
        readers = threads[:, 8 * k : 8 * k + 8].reshape(-1)
        _check_nothing_pending(t, one, rows, 16, readers)
        words = np.stack(t.shared.load(rows, 4, readers, t.clock, 4), 1)  # [warps * 8, 4]
        matrix = words.view(np.uint16).reshape(warps, 8, 8)
        if "trans" in one.parts:
            matrix = matrix.transpose(0, 2, 1)
        pair = matrix.reshape(warps, 8, 4, 2)[:, ROW, COLUMN]
        t.write(register, np.ascontiguousarray(pair).view(np.uint32).reshape(-1))
    return True


def store(t: Threads, one: Instruction, at: int) -> bool:
    """stmatrix: the reverse of ldmatrix."""
    if t.mask(one) is not None or "m8n8" not in one.parts or one.parts[-1] != "b16":
        raise PtxError("unknown form of stmatrix")
    warps = _warps(t)
    address = t.address(one.operands[0]).reshape(warps, 32)
    threads = t.numbers[t.active].reshape(warps, 32)
    for k, register in enumerate(t.elements(one.operands[1])):
        bits = np.broadcast_to(t.read(register, "b32"), t.active.shape)
        matrix = np.ascontiguousarray(bits).view(np.uint16).reshape(warps, 8, 8)
        if "trans" in one.parts:
            matrix = matrix.transpose(0, 2, 1)
        words = np.ascontiguousarray(matrix).view(np.uint32).reshape(-1, 4)
        rows = slice(8 * k, 8 * k + 8)
        t.shared.store(address[:, rows].reshape(-1), 4, threads[:, rows].reshape(-1), t.clock, [*words.T])
    return True


def _elements(t: Threads, registers: list[str], kind: str) -> Array:
    """[warps, lanes, registers, elements of a register] in float64."""
    bits = np.stack([np.broadcast_to(t.read(r, "b32"), t.active.shape) for r in registers], 1)
    bits = np.ascontiguousarray(bits).reshape(-1, 32, len(registers))
    if kind in ("bf16", "f16"):
        halves = bits.view(np.uint16).reshape(*bits.shape, 2)
        return (of_bf16(halves) if kind == "bf16" else halves.view(np.float16)).astype(np.float64)
    if kind == "tf32":
        bits = bits & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)[..., None]


def multiply(t: Threads, one: Instruction, at: int) -> bool:
    """mma: d = a @ b + c, added up in float64 and rounded once."""
    parts = one.parts
    shape, (to, of_a, of_b, of_c) = parts[3], parts[-4:]
    if parts[4:6] != ("row", "col") or (to, of_c) != ("f32", "f32") or of_a != of_b:
        raise PtxError("unknown form of mma")
    deep = {"m16n8k16": 16, "m16n8k8": 8, "m16n8k4": 4}.get(shape)
    each = 1 if of_a == "tf32" else 2
    if deep is None or of_a not in ("tf32", "bf16", "f16"):
        raise PtxError("unknown form of mma")
    _warps(t)
    d, a, b, c = (t.elements(operand) for operand in one.operands)
    some_a, some_b = _elements(t, a, of_a), _elements(t, b, of_b)
    warps = len(some_a)
    left, right = np.zeros((warps, 16, deep)), np.zeros((warps, deep, 8))
    for k in range(len(a)):
        for j in range(each):
            left[:, ROW + 8 * (k % 2), each * COLUMN + j + 4 * each * (k // 2)] = some_a[:, :, k, j]
    for k in range(len(b)):
        for j in range(each):
            right[:, each * COLUMN + j + 4 * each * k, ROW] = some_b[:, :, k, j]
    added = _elements(t, c, "f32")
    matmul = left @ right
    for k, register in enumerate(d):
        found = matmul[:, ROW + 8 * (k // 2), 2 * COLUMN + k % 2] + added[:, :, k, 0]
        t.write(register, found.astype(np.float32).reshape(-1))
    return True

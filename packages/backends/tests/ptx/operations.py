"""Instructions that do more than compute: moves, memory, control, exchange between threads.

Each takes the threads, the instruction and its index, and says whether the threads go on with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ptx import matrices, warps
from ptx.memory import GLOBAL, LOCAL, PARAMETERS, Space
from ptx.numbers import TYPES
from ptx.program import WIDTHS, Instruction, PtxError
from ptx.races import Fault
from ptx.threads import Threads
from ptx.warps import DONE, HELD, RUNNING, WAITING

Array = np.ndarray[Any, Any]


def _masked(t: Threads, one: Instruction) -> Array | None:
    """Numbers among the active threads of those that the guard lets through; None if it lets through all."""
    where = t.mask(one)
    return None if where is None else np.flatnonzero(where)


def _some(values: Array, chosen: Array | None, count: int) -> Array:
    values = np.broadcast_to(values, count)
    return values if chosen is None else values[chosen]


def _spread(t: Threads, values: Array, chosen: Array | None) -> tuple[Array, Array | None]:
    """Values of the chosen threads as values of all active ones, and where they hold."""
    if chosen is None:
        return values, None
    whole = np.zeros(len(t.active), values.dtype)
    where = np.zeros(len(t.active), bool)
    whole[chosen], where[chosen] = values, True
    return whole, where


def _move(t: Threads, one: Instruction, at: int) -> bool:
    target, source = one.operands
    kind, where = one.parts[-1], t.mask(one)
    if kind == "pred":
        t.write(target, t.read(source, "pred"), where)
    elif target.startswith("{"):
        registers = t.elements(target)
        value = t.read(source, kind)
        size = WIDTHS[kind] // len(registers)
        for k, register in enumerate(registers):
            t.write(register, (value >> value.dtype.type(k * size)).astype(f"u{size // 8}"), where)
    elif source.startswith("{"):
        parts = t.elements(source)
        size = WIDTHS[kind] // len(parts)
        found = np.zeros(1, f"u{WIDTHS[kind] // 8}")[0]
        for k, part in enumerate(parts):
            found = found | (t.read(part, f"b{size}").astype(found.dtype) << found.dtype.type(k * size))
        t.write(target, found, where)
    else:
        t.write(target, t.read(source, kind), where)
    return True


def _convert_address(t: Threads, one: Instruction, at: int) -> bool:
    t.write(one.operands[0], t.read(one.operands[1], one.parts[-1]), t.mask(one))
    return True


_SPACES = ("global", "shared", "local", "param", "const")


def _space(t: Threads, one: Instruction, address: Array) -> Space:
    """The space that the instruction names, else the one in which the addresses lie."""
    name = next((p.split("::")[0] for p in one.parts if p.split("::")[0] in _SPACES), "")
    if not name:
        first = int(address.flat[0])
        name = "global" if first >= GLOBAL >> 1 else "local" if first >= LOCAL else "shared"
    if name == "local":
        if t.local is None:
            raise PtxError("no local memory")
        return t.local
    return t.shared if name == "shared" else t.memory


def _count(one: Instruction) -> int:
    return next((int(p[1]) for p in one.parts if p in ("v2", "v4", "v8")), 1)


def _load(t: Threads, one: Instruction, at: int) -> bool:
    kind, registers = one.parts[-1], t.elements(one.operands[0])
    if "param" in one.parts:
        return _load_parameter(t, one, registers)
    width = WIDTHS[kind] // 8
    chosen = _masked(t, one)
    if chosen is not None and not len(chosen):
        for register in registers:
            t.read(register, f"b{t.program.registers[register]}")
        return True
    address = _some(t.address(one.operands[1]), chosen, len(t.active))
    threads = t.numbers[t.active] if chosen is None else t.numbers[t.active[chosen]]
    _check_nothing_pending(t, one, address, width * len(registers), threads)
    found = _space(t, one, address).load(address, width, threads, t.clock, len(registers))
    for register, value in zip(registers, found, strict=True):
        whole, where = _spread(t, value.view(TYPES[kind]), chosen)
        t.write(register, whole, where)
    return True


def _load_parameter(t: Threads, one: Instruction, registers: list[str]) -> bool:
    name, _, offset = (part.strip() for part in one.operands[1].strip("[] ").partition("+"))
    kind = one.parts[-1]
    width = WIDTHS[kind] // 8
    if name.startswith("%") and name in t.program.registers:
        return _load_chosen_parameter(t, one, registers)
    start = int(offset or "0")
    if name not in t.program.parameters:  # of a call
        for k, register in enumerate(registers):
            t.write(register, t.read(f"{name}+{start + k * width}", kind), t.mask(one))
        return True
    begin, size = t.program.parameters[name]
    if start + width * len(registers) > size:
        raise PtxError("reads beyond a parameter")
    for k, register in enumerate(registers):
        data = t.parameters[begin + start + k * width : begin + start + (k + 1) * width]
        t.write(register, np.frombuffer(data, TYPES[kind])[0], t.mask(one))
    return True


def _load_chosen_parameter(t: Threads, one: Instruction, registers: list[str]) -> bool:
    """By an address among the parameters, which each thread has for itself."""
    kind = one.parts[-1]
    width = WIDTHS[kind] // 8
    offset = t.address(one.operands[1]) - PARAMETERS
    begins = np.array([begin for begin, _ in t.program.parameters.values()], np.int64)
    ends = np.array([begin + size for begin, size in t.program.parameters.values()], np.int64)
    which = np.searchsorted(begins, offset, side="right") - 1
    if (which < 0).any() or (offset + width * len(registers) > ends[which]).any():
        raise PtxError("reads beyond a parameter")
    data = np.frombuffer(t.parameters, np.uint8)
    for k, register in enumerate(registers):
        indices = offset[:, None] + k * width + np.arange(width)
        t.write(register, data[indices].view(TYPES[kind])[:, 0], t.mask(one))
    return True


def _store_parameter(t: Threads, one: Instruction) -> bool:
    name, _, offset = (part.strip() for part in one.operands[0].strip("[] ").partition("+"))
    kind = one.parts[-1]
    for k, source in enumerate(t.elements(one.operands[1])):
        parameter = f"{name}+{int(offset or '0') + k * WIDTHS[kind] // 8}"
        t.program.registers[parameter] = WIDTHS[kind]
        t.write(parameter, t.read(source, kind), t.mask(one))
    return True


def _store(t: Threads, one: Instruction, at: int) -> bool:
    if "param" in one.parts:
        return _store_parameter(t, one)
    kind = one.parts[-1]
    chosen = _masked(t, one)
    if chosen is not None and not len(chosen):
        return True
    address = _some(t.address(one.operands[0]), chosen, len(t.active))
    threads = t.numbers[t.active] if chosen is None else t.numbers[t.active[chosen]]
    width = WIDTHS[kind] // 8
    values = [
        _some(np.asarray(t.read(part, f"b{WIDTHS[kind]}")), chosen, len(t.active))
        for part in t.elements(one.operands[1])
    ]
    _space(t, one, address).store(address, width, threads, t.clock, values)
    return True


# Atomic operations.


def _atomic(t: Threads, one: Instruction, at: int) -> bool:
    kind = one.parts[-1]
    returns = one.parts[0] == "atom"
    target, location, *operands = one.operands if returns else ["_", *one.operands]
    chosen = _masked(t, one)
    if chosen is not None and not len(chosen):
        return True
    address = _some(t.address(location), chosen, len(t.active))
    threads = t.numbers[t.active] if chosen is None else t.numbers[t.active[chosen]]
    width = WIDTHS.get(kind, 32 if kind in ("f16x2", "bf16x2") else 16) // 8
    count = _count(one)
    vectors = [t.elements(o) for o in operands]
    t.memory.elements(address, width, threads, width * count)
    results = t.elements(target) if returns else ["_"] * count
    for k, result in enumerate(results):
        given = [_some(np.asarray(t.read(v[k], f"b{8 * width}")), chosen, len(t.active)) for v in vectors]
        found = _space(t, one, address).update(address + k * width, width, threads, t.clock, _change(one, given))
        whole, where = _spread(t, found, chosen)
        t.write(result, whole, where)
    return True


def _change(one: Instruction, values: list[Array]) -> Callable[[Array, Array], Array]:
    """Return the function of an atomic: the new values, of the present ones and the threads."""
    kind = one.parts[-1]
    what = next(p for p in one.parts if p in ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec"))

    def change(there: Array, which: Array) -> Array:
        given = values[0][which]
        if what == "exch":
            return given
        if what == "cas":
            return np.where(there == given, values[1][which], there)
        if what in ("and", "or", "xor"):
            return {"and": there & given, "or": there | given, "xor": there ^ given}[what]
        if kind not in TYPES or what not in ("add", "min", "max"):
            raise PtxError("unknown atomic operation")
        a, b = there.view(TYPES[kind]), np.ascontiguousarray(given).view(TYPES[kind])
        return {"add": np.add, "min": np.minimum, "max": np.maximum}[what](a, b).view(there.dtype)

    return change


# Copies that go on beside the threads.


def _copy_beside(t: Threads, one: Instruction, at: int) -> bool:
    if "commit_group" in one.parts:
        t.committed[t.active] += 1
        return True
    if "wait_group" in one.parts or "wait_all" in one.parts:
        left = int(one.operands[0], 0) if one.operands else 0
        _finish(t, left)
        return True
    if one.parts[2] not in ("ca", "cg") or "bulk" in one.parts:
        raise PtxError("unknown form of cp")
    chosen = _masked(t, one)
    if chosen is not None and not len(chosen):
        return True
    count = len(t.active)
    size = int(one.operands[2], 0)
    into = _some(t.address(one.operands[0]), chosen, count)
    of = _some(t.address(one.operands[1]), chosen, count)
    active = t.active if chosen is None else t.active[chosen]
    threads = t.numbers[active]
    read = np.asarray(size if len(one.operands) < 4 else t.read(one.operands[3], "u32"))
    read = _some(read, chosen, count).astype(np.int64)
    if not np.isin(read, (0, size)).all():
        raise PtxError("copies of a part")
    if (of[read > 0] % size != 0).any():
        raise Fault(f"misaligned address for {size} bytes", int(threads[0]), "cp.async")
    values = np.zeros((size // 4, len(into)), np.uint32)
    some = read > 0
    if some.any():
        for k in range(size // 4):
            values[k, some] = t.memory.load(of[some] + 4 * k, 4, threads[some], t.clock)[0]
    t.shared.elements(into, 4, threads, size)
    t.pending.append([active, into, values, t.committed[active].copy()])
    return True


def _finish(t: Threads, left: int) -> None:
    """Finish the active threads' groups of copies, all but the last `left`."""
    waiting = np.zeros(len(t.pc), bool)
    waiting[t.active] = True
    kept = []
    for active, into, values, group in t.pending:
        done = waiting[active] & (group < t.committed[active] - left)
        if done.any():
            t.shared.store(into[done], 4, t.numbers[active[done]], t.clock, [v[done] for v in values])
        rest = ~done
        if rest.any():
            kept.append([active[rest], into[rest], values[:, rest], group[rest]])
    t.pending = kept


def _check_nothing_pending(t: Threads, one: Instruction, address: Array, size: int, threads: Array) -> None:
    if not t.pending or not any(p.startswith("shared") for p in one.parts):
        return

    def words(threads: Array, address: Array) -> Array:
        block = (threads - t.clock.first) // t.program.threads
        return (block * t.shared.size + address.astype(np.int64) - t.shared.base) // 4

    busy = np.zeros(len(t.shared.data) // 4, bool)
    for active, into, values, _ in t.pending:
        first = words(t.numbers[active], into)
        for k in range(len(values)):
            busy[first + k] = True
    first = words(threads, address)
    for j in range(max(size // 4, 1)):
        there = first + j
        bad = (there >= 0) & (there < len(busy))  # outside, the access itself reports it
        bad[bad] = busy[there[bad]]
        if bad.any():
            thread = int(threads[np.flatnonzero(bad)[0]])
            raise Fault("reads what is being copied", thread, t.shared.describe(int(address[bad][0])))


# Control.


def _branch(t: Threads, one: Instruction, at: int) -> bool:
    where = t.mask(one)
    t.pc[t.active] = one.target if where is None else np.where(where, one.target, at + 1)
    return False


def _return(t: Threads, one: Instruction, at: int) -> bool:
    where = t.mask(one)
    t.pc[t.active] = at + 1
    t.state[t.active if where is None else t.active[where]] = DONE
    t.state[t.state == HELD] = RUNNING  # they may have waited for these
    _release(t)
    return False


def _barrier(t: Threads, one: Instruction, at: int) -> bool:
    if "warp" in one.parts:
        return True  # that these lanes meet is noted where they are gathered
    if t.mask(one) is not None or "sync" not in one.parts or len(one.operands) > 1 or one.operands[0] != "0":
        raise PtxError("unknown form of barrier")
    t.pc[t.active] = at + 1
    t.state[t.active] = WAITING
    _release(t)
    return False


def _release(t: Threads) -> None:
    """Blocks go on of which nobody is still to come."""
    blocks = t.state.reshape(t.blocks, -1)
    waiting = (blocks == WAITING).any(1) & ((blocks == WAITING) | (blocks == DONE)).all(1)
    if waiting.any():
        counters = np.where(blocks == WAITING, t.pc.reshape(t.blocks, -1), -1)[waiting]
        most = counters.max(1, keepdims=True)
        if ((counters >= 0) & (counters != most)).any():
            block = int(np.flatnonzero(waiting)[0])
            raise Fault(
                "threads of a block wait at different barriers", int(t.numbers[block * t.program.threads]), "bar.sync"
            )
        chosen = blocks[waiting]
        chosen[chosen == WAITING] = RUNNING
        blocks[waiting] = chosen
        t.state = blocks.reshape(-1)
        t.clock.blocks_met[waiting] = t.clock.now + 1


def _call(t: Threads, one: Instruction, at: int) -> bool:
    if "__assertfail" in one.text:
        raise Fault("an assertion of the kernel fails", int(t.numbers[t.active[0]]), "__assertfail")
    raise PtxError("unknown function")


def _nothing(t: Threads, one: Instruction, at: int) -> bool:
    return True


OPERATIONS: Mapping[str, Callable[[Threads, Instruction, int], bool]] = {
    "mov": _move, "cvta": _convert_address, "ld": _load, "ldu": _load, "st": _store, "atom": _atomic, "red": _atomic,
    "cp": _copy_beside, "bra": _branch, "ret": _return, "exit": _return, "bar": _barrier, "barrier": _barrier,
    "call": _call, "membar": _nothing, "fence": _nothing, "prefetch": _nothing, "shfl": warps.shuffle,
    "vote": warps.vote, "redux": warps.reduce, "ldmatrix": matrices.load, "stmatrix": matrices.store,
    "mma": matrices.multiply,
}  # fmt: skip

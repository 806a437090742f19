"""From the canonical form to a code object of the running CPython: `encode`."""

from __future__ import annotations

from itertools import accumulate
from types import CodeType
from typing import Final

from framesmith_bytecode.analyses.header import check_header, check_types
from framesmith_bytecode.analyses.spans import BytecodeError, describe
from framesmith_bytecode.analyses.stack import StackStates
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.cpython.exception_table import Entry, write_exception_table
from framesmith_bytecode.cpython.opcodes import CACHES, NAMES, OPCODES
from framesmith_bytecode.cpython.positions import write_line_table
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Label, Position, expect_bytecode, plain_name
from framesmith_bytecode.writing.lower import lower
from framesmith_bytecode.writing.lowered import Lowered, Unit

#: Rounds in which sizes of jumps may shrink, too; the compiler needs two or three.
_SHRINKING_ROUNDS: Final = 16
_EXTENDED_ARG: Final = OPCODES["EXTENDED_ARG"]
_CACHES: Final = [CACHES.get(NAMES.get(number, ""), 0) for number in range(256)]
_PADDING: Final = [bytes(2 * count) for count in range(16)]
_BACKWARD: Final = frozenset(
    number for name, number in OPCODES.items() if "BACKWARD" in name or name == "END_ASYNC_FOR"
)


def _prefixes(arg: int) -> int:
    """Number of EXTENDED_ARG prefixes of an operand."""
    return 0 if arg < 0x100 else 1 if arg < 0x10000 else 2 if arg < 0x1000000 else 3


def _is_lost(arg: object, low: Lowered) -> bool:
    return isinstance(arg, Label) and arg not in low.labels


def _settle(low: Lowered) -> tuple[list[int], list[int], list[int]]:
    """Operand, size in code units and offset of every instruction (one more offset for the end).

    As in the compiler, a backward jump may keep a prefix whose own length is all that needs it. After a few rounds
    sizes only grow, so this terminates.
    """
    units, labels = low.units, low.labels
    args = [arg if isinstance(arg, int) else 0 for _, arg, _ in units]
    sizes = [1 + _CACHES[opcode] for opcode, _, _ in units]
    for index, arg in enumerate(args):
        if arg > 0xFF:
            sizes[index] += _prefixes(arg)
    try:
        jumps = [(i, opcode, labels[arg]) for i, (opcode, arg, _) in enumerate(units) if isinstance(arg, Label)]
    except KeyError:  # in unreachable code, or stack_states would have raised
        items = low.bytecode.instructions
        lost = next(i for i, item in enumerate(items) if isinstance(item, Instr) and _is_lost(item.arg, low))
        raise BytecodeError(
            f"{low.bytecode.name}: {describe(items, lost)}: its label is not in the instructions"
        ) from None
    if TABLE.jumps_start_wide:
        for index, _, target in jumps:
            sizes[index] += _prefixes(target)
    rounds, changed, offsets = 0, True, [0]
    while changed:
        offsets = [0, *accumulate(sizes)]
        rounds, changed = rounds + 1, False
        for index, opcode, target in jumps:
            distance = offsets[target] - offsets[index + 1]
            arg = args[index] = -distance if opcode in _BACKWARD else distance
            size = 1 + _CACHES[opcode] + _prefixes(arg)
            if size > sizes[index] or (size < sizes[index] and rounds <= _SHRINKING_ROUNDS):
                sizes[index] = size
                changed = True
    return args, sizes, offsets


def _write_code(units: list[Unit], args: list[int], sizes: list[int]) -> bytes:
    out = bytearray()
    for (opcode, _, _), arg, size in zip(units, args, sizes, strict=True):
        caches = _CACHES[opcode]
        prefixes = size - 1 - caches
        if prefixes:
            for shift in range(8 * prefixes, 0, -8):
                out.append(_EXTENDED_ARG)
                out.append(arg >> shift & 0xFF)
        out.append(opcode)
        out.append(arg & 0xFF)
        if caches:
            out += _PADDING[caches]
    return bytes(out)


def _position_runs(units: list[Unit], sizes: list[int]) -> list[tuple[Position | None, int]]:
    runs: list[tuple[Position | None, int]] = []
    current: Position | None = None
    length = 0
    for (_, _, position), size in zip(units, sizes, strict=True):
        if position is current or position == current:
            length += size
        else:
            if length:
                runs.append((current, length))
            current, length = position, size
    if length:
        runs.append((current, length))
    return runs


def _regions_of_units(low: Lowered, states: StackStates) -> list[tuple[int, int, int]]:
    """Runs of units in one region: start, end, region.

    The exits of a loop are in the region of its FOR_ITER, an implied NOT_TAKEN in that of its jump or in none.
    """
    at = {index: low.labels[label] for label, index in states.labels.items()}
    runs = [(at[span.start], at[span.end], span.key) for span in states.spans]
    if not low.exits and not low.implied:
        return runs
    units: dict[int, int] = {unit: key for start, end, key in runs for unit in range(start, end)}
    regions = {index: span.key for span in states.spans for index in range(span.start, span.end)}
    for unit, loop in low.exits.items():
        units.pop(unit, None)
        if loop in regions:
            units[unit] = regions[loop]
    for unit, jump in low.implied.items():
        if units.get(unit) != regions.get(jump):
            units.pop(unit, None)
    runs = []
    for unit in sorted(units):
        if runs and runs[-1][1] == unit and runs[-1][2] == units[unit]:
            runs[-1] = (runs[-1][0], unit + 1, units[unit])
        else:
            runs.append((unit, unit + 1, units[unit]))
    return runs


def _exception_entries(low: Lowered, states: StackStates, offsets: list[int]) -> list[Entry]:
    entries: list[Entry] = []
    for first, last, key in _regions_of_units(low, states):
        region = low.bytecode.regions[key]
        depth = states.regions.get(key, region.depth)
        if depth is None:  # no path enters the region, and it has no depth
            continue
        entry = Entry(offsets[first], offsets[last], offsets[low.labels[region.handler]], depth, region.lasti)
        if entry.start >= entry.end:
            continue
        if entries and entries[-1].end == entry.start and entries[-1][2:] == entry[2:]:
            entries[-1] = entries[-1]._replace(end=entry.end)
        else:
            entries.append(entry)
    return entries


def encode(bytecode: Bytecode) -> CodeType:
    """A code object for the running CPython.

    Stack size, jumps, caches, fused instructions, prologue and tables are computed. Raises `BytecodeError` for
    instructions that cannot run safely, `TypeError` for other values.
    """
    expect_bytecode(bytecode, "encode")
    check_types(bytecode)
    check_header(bytecode)
    states = stack_states(bytecode)
    low = lower(bytecode, states)
    args, sizes, offsets = _settle(low)
    grown = len(low.consts.values) > len(bytecode.consts)
    consts = tuple(low.consts.values) if grown else bytecode.consts  # functions may share it
    return CodeType(
        bytecode.argcount,
        bytecode.posonlyargcount,
        bytecode.kwonlyargcount,
        len(bytecode.varnames),
        low.deepest,
        bytecode.flags,
        _write_code(low.units, args, sizes),
        consts,
        tuple(low.names),
        tuple(bytecode.varnames),
        bytecode.filename,
        bytecode.name,
        bytecode.qualname or bytecode.name,
        bytecode.firstlineno,
        write_line_table(_position_runs(low.units, sizes), bytecode.firstlineno),
        write_exception_table(_exception_entries(low, states, offsets)) if states.spans else b"",
        tuple(map(plain_name, bytecode.freevars)),
        tuple(bytecode.cellvars),
    )

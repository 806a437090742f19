"""From `types.CodeType` to the canonical form: `decode`.

Version opcodes with a canonical namesake are read by a table, the others by a row of `READERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Final

from framesmith_bytecode.analyses.borrow import compiler_borrows
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.cpython.exception_table import Entry, read_exception_table
from framesmith_bytecode.cpython.opcodes import (
    CACHES,
    CLOSURE_BY_FAST,
    EXPLICIT_END_SEND,
    JUMPS,
    NAMES,
    NOT_TAKEN,
    OPCODES,
)
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Item, Label, Position, Region
from framesmith_bytecode.model.ops import OPS
from framesmith_bytecode.reading.readers import FOR_EXIT, READERS, DecodeError, Reader, read_nothing, read_unknown

_EXTENDED_ARG: Final = OPCODES["EXTENDED_ARG"]
_new: Final = tuple.__new__

# Opcodes read without a reader, by the meaning of their operand.
_READER, _NONE, _NUMBER, _CONST, _NAME, _SLOT = range(6)
_KIND_OF_OPERAND: Final = {"none": _NONE, "count": _NUMBER, "index": _NUMBER, "const": _CONST, "name": _NAME,
                           "local": _SLOT, "deref": _SLOT}  # fmt: skip


def _plan() -> list[tuple[int, str, int, Callable[[Reader], None]]]:
    """For each opcode: kind, canonical name, cache units, reader."""
    plan = []
    for number in range(256):
        name = NAMES.get(number, "")
        caches = CACHES.get(name, 0)
        if number in READERS:
            plan.append((_READER, name, caches, READERS[number]))
        elif name in OPS:
            plan.append((_KIND_OF_OPERAND[OPS[name].operand], name, caches, read_nothing))
        else:
            plan.append((_READER, name, caches, read_unknown))
    return plan


def _jump_sign(name: str) -> int:
    return -1 if "BACKWARD" in name else 1


_PLAN: Final = _plan()
_JUMP_NAMES: Final = {name for pair in JUMPS.values() for name in pair if name} | {
    "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP",
}  # fmt: skip
_JUMPS: Final = {OPCODES[name]: _jump_sign(name) for name in _JUMP_NAMES if name in OPCODES}
_FOR_ITER: Final = OPCODES["FOR_ITER"]
_SEND: Final = OPCODES["SEND"]
_NOT_TAKEN: Final = OPCODES.get("NOT_TAKEN")


def _mark_targets(reader: Reader, body: bytes) -> None:
    """Make the labels of all jump targets, so that the reading pass can insert them."""
    extended = 0
    unit = 0
    units = len(body) >> 1
    while unit < units:
        opcode = body[2 * unit]
        if opcode == _EXTENDED_ARG:
            extended = (extended | body[2 * unit + 1]) << 8
            unit += 1
            continue
        caches = _PLAN[opcode][2]
        if opcode in _JUMPS and opcode != _SEND:
            target = unit + 1 + caches + _JUMPS[opcode] * (body[2 * unit + 1] | extended)
            reader.label(target + (len(FOR_EXIT) if opcode == _FOR_ITER else 0))
        elif opcode == _SEND and EXPLICIT_END_SEND:
            reader.label(unit + 1 + caches + (body[2 * unit + 1] | extended))
        extended = 0
        unit += 1 + caches


def _read_instructions(reader: Reader, body: bytes) -> None:
    """One pass over the code units; equal positions are shared."""
    ranges = list(reader.code.co_positions())
    ranges += [(None, None, None, None)] * (len(body) // 2 - len(ranges))  # tools truncate or remove line tables
    shared: dict[tuple[int | None, ...], Position | None] = {(None, None, None, None): None}
    plan, labels, send_targets, out = _PLAN, reader.labels, reader.send_targets, reader.out
    consts, names, slots = reader.consts, reader.names, reader.slots
    skip = reader.skip
    extended = 0
    unit = 0
    units = len(body) >> 1
    append = out.append
    while unit < units:
        opcode = body[2 * unit]
        arg = body[2 * unit + 1] | extended
        if unit in send_targets:
            reader.end_send(*send_targets[unit])
        if unit in labels:
            append(labels[unit])
        if opcode == _EXTENDED_ARG:
            extended = arg << 8
            unit += 1
            continue
        extended = 0
        if unit in skip:
            unit += 1
            continue
        kind, op, caches, read = plan[opcode]
        try:
            position = shared[ranges[unit]]
        except KeyError:
            fields = ranges[unit]
            position = shared[fields] = None if fields[0] is None else _new(Position, fields)
        after = unit + 1 + caches
        if kind == _SLOT:
            append(_new(Instr, (op, slots[arg], position)))
        elif kind == _CONST:
            append(_new(Instr, (op, consts[arg], position)))
        elif kind == _NONE:
            append(_new(Instr, (op, None, position)))
        elif kind == _NAME:
            append(_new(Instr, (op, names[arg], position)))
        elif kind == _NUMBER:
            append(_new(Instr, (op, arg, position)))
        else:
            reader.opcode, reader.arg, reader.position, reader.where = opcode, arg, position, unit
            if opcode in _JUMPS:
                reader.target = after + _JUMPS[opcode] * arg
                if opcode == _FOR_ITER and FOR_EXIT:
                    skip.update(range(reader.target, reader.target + len(FOR_EXIT)))
            read(reader)
        unit = after
    if units in labels:
        append(labels[units])


def _mark_branches(reader: Reader, body: bytes, entries: list[Entry]) -> None:
    """Put two labels where a region ends between a conditional jump and its implied NOT_TAKEN.

    A NOT_TAKEN with which a region begins is read as a NOP.
    """
    for start, end, *_ in entries:
        reader.region_starts.add(start)
        if 2 * end < len(body) and body[2 * end] == _NOT_TAKEN:
            reader.label(end + 1)


def _mark_owning_loads(reader: Reader, bytecode: Bytecode) -> None:
    """Put a label behind each load that could borrow and does not: the compiler's basic block ended later."""
    borrows = compiler_borrows(bytecode, set(reader.owning))
    for index in reversed(reader.owning):
        if index in borrows:
            bytecode.instructions.insert(index + 1, Label())


def _check_labels(reader: Reader) -> None:
    """Targets of jumps and bounds of regions must be starts of instructions."""
    missing = set(reader.labels.values()).difference([item for item in reader.out if item.__class__ is Label])
    if missing:
        unit = min(unit for unit, label in reader.labels.items() if label in missing)
        raise DecodeError(f"{reader.code.co_name}: something leads to unit {unit}, where no instruction begins")


def _read_regions(reader: Reader, entries: list[Entry]) -> list[Region]:
    """Regions of the table's entries, without those that cover no canonical instruction."""
    order: dict[Label, int] = {}
    count = 0
    for item in reader.out:
        if type(item) is Label:
            order[item] = count
        else:
            count += 1
    regions = []
    for start, end, target, depth, lasti in entries:
        first, last, handler = reader.labels[start], reader.labels[end], reader.labels[target]
        if order[first] < order[last]:
            regions.append(Region(first, last, handler, depth, lasti))
    return regions


def _separate_locals_from_cells(bytecode: Bytecode) -> None:
    """Read a load of a cell's slot as LOAD_FAST where a comprehension uses the slot for its own variable.

    Elsewhere it is a LOAD_CLOSURE, in a fused pair as well.
    """
    cells = {*bytecode.cellvars, *bytecode.freevars}
    items = bytecode.instructions
    moved = {i.arg for i in items if isinstance(i, Instr) and OPS[i.op].operand == "local"} & cells
    if not moved:
        return
    loads = ("LOAD_CLOSURE", "LOAD_FAST")
    doubtful = [k for k, i in enumerate(items) if isinstance(i, Instr) and i.op in loads and i.arg in moved]
    for index in doubtful:
        _rename(items, index, "LOAD_FAST")
    states = stack_states(bytecode)
    for index in doubtful:
        item = items[index]
        if isinstance(item, Instr) and item.arg not in states.displaced_cells_at(index):
            _rename(items, index, "LOAD_CLOSURE")


def _rename(items: list[Item], index: int, op: str) -> None:
    _, arg, position = items[index]  # type: ignore[misc]
    items[index] = _new(Instr, (op, arg, position))


def decode(code: CodeType) -> Bytecode:
    """The canonical form of a code object of the running CPython.

    Specialised and instrumented code reads like fresh code (`co_code` undoes both).
    Raises `TypeError` for other values and `DecodeError` for code that no compiler makes.
    """
    if not isinstance(code, CodeType):
        raise TypeError(f"decode takes a code object, not {type(code).__name__}; a function's is its __code__")
    try:
        return _decode(code)
    except DecodeError:
        raise
    except LookupError as error:
        raise DecodeError(f"{code.co_name}: an operand leads out of the constants, names or variables") from error
    except ValueError as error:
        raise DecodeError(f"{code.co_name}: {error}") from error


def _decode(code: CodeType) -> Bytecode:
    reader = Reader(code)
    body = code.co_code
    entries = read_exception_table(code.co_exceptiontable)
    _mark_targets(reader, body)
    for entry in entries:
        for unit in entry[:3]:
            reader.label(unit)
    if NOT_TAKEN:
        _mark_branches(reader, body, entries)
    _read_instructions(reader, body)
    if reader.labels:
        _check_labels(reader)
    bytecode = Bytecode(
        code.co_name,
        reader.out,
        _read_regions(reader, entries) if entries else [],
        code.co_qualname,
        code.co_filename,
        code.co_firstlineno,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        list(code.co_varnames),
        list(code.co_cellvars),
        reader.slots[len(reader.slots) - len(code.co_freevars) :] if code.co_freevars else [],
        code.co_consts,
        code.co_names,
    )
    if CLOSURE_BY_FAST and code.co_nlocals and (code.co_cellvars or code.co_freevars):
        _separate_locals_from_cells(bytecode)
    if reader.owning:
        _mark_owning_loads(reader, bytecode)
    return bytecode

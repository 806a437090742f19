"""From `types.CodeType` to the canonical form: `decode`.

Version opcodes with a canonical namesake are read by a table; the rest have a reader each in `READERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Final

from framesmith_bytecode.exception_table import Entry, read_exception_table
from framesmith_bytecode.model import (
    COUNT_LIMITS,
    FREE_MARK,
    Bytecode,
    Instr,
    Item,
    Label,
    Position,
    Region,
    why_not_instruction,
)
from framesmith_bytecode.ops import (
    BINARY_OPERATORS,
    COMPARISONS,
    CONVERSIONS,
    FUNCTION_PARTS,
    OPS,
    CallShape,
    SuperShape,
)
from framesmith_bytecode.versions import TABLE
from framesmith_bytecode.walk import stack_depths

_OPCODES: Final = TABLE.opcodes
_NAMES: Final = TABLE.names
_EXTENDED_ARG: Final = _OPCODES["EXTENDED_ARG"]
_FOR_EXIT: Final = bytes(_OPCODES[name] for name in TABLE.for_exit)
_PART_BITS: Final = {1 << bit: part for bit, part in enumerate(FUNCTION_PARTS)}
_new: Final = tuple.__new__


class DecodeError(ValueError):
    """The code object holds something no compiler of this CPython makes."""


class _Reader:
    """The state of decoding one code object; `out` grows, `arg` and `position` are those of the instruction read."""

    __slots__ = ("arg", "code", "consts", "kwnames", "labels", "names", "out", "position", "send_targets",
                 "slots", "target", "where")  # fmt: skip

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.consts = code.co_consts
        self.names = code.co_names
        self.slots = _slot_names(code)
        self.out: list[Item] = []
        self.labels: dict[int, Label] = {}
        self.send_targets: dict[int, tuple[Label, Position | None]] = {}
        self.kwnames: tuple[str, ...] = ()
        self.arg = 0
        self.where = 0
        self.target = 0
        self.position: Position | None = None

    def put(self, op: str, arg: object = None) -> None:
        self.out.append(_new(Instr, (op, arg, self.position)))

    def label(self, unit: int) -> Label:
        label = self.labels.get(unit)
        if label is None:
            label = self.labels[unit] = Label()
        return label

    def end_send(self, label: Label, position: Position | None) -> None:
        """3.11's SEND drops the receiver when it jumps; control that comes here from above does not."""
        falls = not isinstance(self.out[-1], Instr) or OPS[self.out[-1].op].flow in ("next", "branch")
        around = Label()
        if falls:
            self.out.append(_new(Instr, ("JUMP", around, position)))
        self.out += [label, _new(Instr, ("END_SEND", None, position))]
        if falls:
            self.out.append(around)

    def take_last(self, op: str) -> Instr:
        last = self.out.pop() if self.out else None
        if not isinstance(last, Instr) or last.op != op:
            raise DecodeError(f"{self.code.co_name}: unit {self.where}: expected {op} right before this instruction")
        return last


def _slot_names(code: CodeType) -> list[str]:
    """A unique name for every slot of the frame (see `Bytecode` on free variables)."""
    varnames = list(code.co_varnames)
    known = set(varnames)
    cells = [name for name in code.co_cellvars if name not in known]
    known.update(cells)
    free = [name + FREE_MARK if name in known else name for name in code.co_freevars]
    return varnames + cells + free


# -- readers of single opcodes


def _read_unknown(reader: _Reader) -> None:
    raise DecodeError(f"{reader.code.co_name}: unit {reader.where}: this CPython's compiler emits no such opcode")


def _read_nothing(reader: _Reader) -> None:
    pass


def _read_make_cell(reader: _Reader) -> None:
    if reader.out:  # the cells of the prologue are implied; this one belongs to an inlined comprehension
        reader.put("MAKE_CELL", reader.slots[reader.arg])


def _read_load_global(reader: _Reader) -> None:
    null = reader.arg & 1
    if null and TABLE.null_first:
        reader.put("PUSH_NULL")
    reader.put("LOAD_GLOBAL", reader.names[reader.arg >> 1])
    if null and not TABLE.null_first:
        reader.put("PUSH_NULL")


def _read_load_attr(reader: _Reader) -> None:
    reader.put("LOAD_METHOD" if reader.arg & 1 else "LOAD_ATTR", reader.names[reader.arg >> 1])


def _read_load_super_attr(reader: _Reader) -> None:
    op = "LOAD_SUPER_METHOD" if reader.arg & 1 else "LOAD_SUPER_ATTR"
    reader.put(op, SuperShape(reader.names[reader.arg >> 2], bool(reader.arg & 2)))


def _read_load_fast_or_closure(reader: _Reader) -> None:
    slot, code = reader.slots[reader.arg], reader.code
    closure = reader.arg >= code.co_nlocals or slot in code.co_cellvars
    reader.put("LOAD_CLOSURE" if closure else "LOAD_FAST", slot)


def _read_local_pair(first: str, second: str) -> Callable[[_Reader], None]:
    def read(reader: _Reader) -> None:
        reader.put(first, reader.slots[reader.arg >> 4])
        reader.put(second, reader.slots[reader.arg & 15])

    return read


def _read_classderef(reader: _Reader) -> None:
    reader.put("LOAD_LOCALS")
    reader.put("LOAD_FROM_DICT_OR_DEREF", reader.slots[reader.arg])


def _read_return_const(reader: _Reader) -> None:
    reader.put("LOAD_CONST", reader.consts[reader.arg])
    reader.put("RETURN_VALUE")


def _read_binary_op(reader: _Reader) -> None:
    reader.put("BINARY_OP", BINARY_OPERATORS[reader.arg])


def _read_compare(reader: _Reader) -> None:
    reader.put("COMPARE_OP", COMPARISONS[reader.arg >> TABLE.compare_shift])
    if reader.arg & TABLE.compare_bool_bit:
        reader.put("TO_BOOL")


def _read_flag(op: str) -> Callable[[_Reader], None]:
    return lambda reader: reader.put(op, bool(reader.arg & 1))


def _read_kw_names(reader: _Reader) -> None:
    reader.kwnames = reader.consts[reader.arg]


def _read_call(reader: _Reader) -> None:
    reader.put("CALL", CallShape(reader.arg, reader.kwnames))
    reader.kwnames = ()


def _read_call_kw(reader: _Reader) -> None:
    names = reader.take_last("LOAD_CONST").arg
    reader.put("CALL", CallShape(reader.arg, names))


def _read_make_function_bits(reader: _Reader) -> None:
    reader.put("MAKE_FUNCTION", frozenset(part for bit, part in _PART_BITS.items() if reader.arg & bit))


def _read_make_function(reader: _Reader) -> None:
    reader.put("MAKE_FUNCTION", frozenset())


def _read_function_attribute(reader: _Reader) -> None:
    part = _PART_BITS[reader.arg]
    last = reader.out[-1]
    # Parts are attached from the last pushed to the first: the order MAKE_FUNCTION's operand means.
    if isinstance(last, Instr) and last.op == "MAKE_FUNCTION" and last.position == reader.position:
        later = FUNCTION_PARTS.index(part)
        if all(FUNCTION_PARTS.index(have) > later for have in last.arg):
            reader.out.pop()
            reader.put("MAKE_FUNCTION", last.arg | {part})
            return
    reader.put("SET_FUNCTION_ATTRIBUTE", part)


def _read_format_value(reader: _Reader) -> None:
    conversion = reader.arg & 3
    if not reader.arg & 4:
        if conversion:
            reader.put("CONVERT_VALUE", CONVERSIONS[conversion - 1])
        reader.put("FORMAT_SIMPLE")
        return
    if conversion:
        reader.put("SWAP", 2)
        reader.put("CONVERT_VALUE", CONVERSIONS[conversion - 1])
        reader.put("SWAP", 2)
    reader.put("FORMAT_WITH_SPEC")


def _read_convert(reader: _Reader) -> None:
    reader.put("CONVERT_VALUE", CONVERSIONS[reader.arg - 1])


def _read_unpack_ex(reader: _Reader) -> None:
    reader.put("UNPACK_EX", (reader.arg & 255, reader.arg >> 8))


def _read_statement(op: str) -> Callable[[_Reader], None]:
    def read(reader: _Reader) -> None:
        reader.put(op)
        reader.put("POP_TOP")

    return read


def _read_intrinsic(numbers: Mapping[str, int], call: str) -> Callable[[_Reader], None]:
    names = {number: name for name, number in numbers.items()}

    def read(reader: _Reader) -> None:
        name = names.get(reader.arg)
        if name is None:
            _read_unknown(reader)
        elif name in OPS:
            reader.put(name)
        else:
            reader.put(call, name)

    return read


def _read_yield(reader: _Reader) -> None:
    reader.put("YIELD_VALUE", None if TABLE.yield_index is None else reader.arg)


def _read_limited(op: str) -> Callable[[_Reader], None]:
    def read(reader: _Reader) -> None:
        problem = why_not_instruction(op, reader.arg)
        if problem is not None:
            raise DecodeError(f"{reader.code.co_name}: unit {reader.where}: {problem}")
        reader.put(op, reader.arg)

    return read


def _read_jump(op: str) -> Callable[[_Reader], None]:
    return lambda reader: reader.put(op, reader.label(reader.target))


def _read_jump_or_pop(op: str) -> Callable[[_Reader], None]:
    def read(reader: _Reader) -> None:
        reader.put("COPY", 1)
        reader.put(op, reader.label(reader.target))
        reader.put("POP_TOP")

    return read


def _read_for_iter(reader: _Reader) -> None:
    skipped = len(_FOR_EXIT)
    body = reader.code.co_code
    found = body[reader.target * 2 : (reader.target + skipped) * 2 : 2]
    if found != _FOR_EXIT:
        raise DecodeError(f"{reader.code.co_name}: unit {reader.where}: FOR_ITER does not lead to {TABLE.for_exit}")
    reader.put("FOR_ITER", reader.label(reader.target + skipped))


def _read_send(reader: _Reader) -> None:
    if TABLE.explicit_end_send:
        reader.put("SEND", reader.label(reader.target))
        return
    label, _ = reader.send_targets.setdefault(reader.target, (Label(), reader.position))
    reader.put("SEND", label)


def _make_readers() -> dict[int, Callable[[_Reader], None]]:
    by_name: dict[str, Callable[[_Reader], None]] = {
        "CACHE": _read_nothing,
        "COPY_FREE_VARS": _read_nothing,
        "PRECALL": _read_nothing,
        "MAKE_CELL": _read_make_cell,
        "LOAD_GLOBAL": _read_load_global,
        "LOAD_SUPER_ATTR": _read_load_super_attr,
        "LOAD_CLASSDEREF": _read_classderef,
        "RETURN_CONST": _read_return_const,
        "BINARY_OP": _read_binary_op,
        "COMPARE_OP": _read_compare,
        "IS_OP": _read_flag("IS_OP"),
        "CONTAINS_OP": _read_flag("CONTAINS_OP"),
        "CALL_FUNCTION_EX": _read_flag("CALL_FUNCTION_EX"),
        "KW_NAMES": _read_kw_names,
        "CALL": _read_call,
        "CALL_KW": _read_call_kw,
        "MAKE_FUNCTION": _read_make_function if TABLE.function_attributes else _read_make_function_bits,
        "SET_FUNCTION_ATTRIBUTE": _read_function_attribute,
        "FORMAT_VALUE": _read_format_value,
        "CONVERT_VALUE": _read_convert,
        "UNPACK_EX": _read_unpack_ex,
        "PRINT_EXPR": _read_statement("PRINT_EXPR"),
        "IMPORT_STAR": _read_statement("IMPORT_STAR"),
        "CALL_INTRINSIC_1": _read_intrinsic(TABLE.intrinsics_1, "CALL_INTRINSIC_1"),
        "CALL_INTRINSIC_2": _read_intrinsic(TABLE.intrinsics_2, "CALL_INTRINSIC_2"),
        "YIELD_VALUE": _read_yield,
        "JUMP_FORWARD": _read_jump("JUMP"),
        "JUMP_IF_FALSE_OR_POP": _read_jump_or_pop("POP_JUMP_IF_FALSE"),
        "JUMP_IF_TRUE_OR_POP": _read_jump_or_pop("POP_JUMP_IF_TRUE"),
        "FOR_ITER": _read_for_iter,
        "SEND": _read_send,
        **{op: _read_limited(op) for op in COUNT_LIMITS},
    }
    for op, directions in TABLE.jumps.items():
        for name in directions:
            if name is not None and name not in by_name:
                by_name[name] = _read_jump(op)
    for (first, second), name in TABLE.pairs.items():
        by_name[name] = _read_local_pair(first, second)
    if TABLE.attr_method_bit:
        by_name["LOAD_ATTR"] = _read_load_attr
    if TABLE.closure_by_fast:
        by_name["LOAD_FAST"] = _read_load_fast_or_closure
    return {_OPCODES[name]: reader for name, reader in by_name.items() if name in _OPCODES}


# Kinds of opcodes read without a reader: what becomes of the operand.
_READER, _NONE, _NUMBER, _CONST, _NAME, _SLOT = range(6)
_KIND_OF_OPERAND: Final = {"none": _NONE, "count": _NUMBER, "index": _NUMBER, "const": _CONST, "name": _NAME,
                           "local": _SLOT, "deref": _SLOT}  # fmt: skip
READERS: Final = _make_readers()


def _plan() -> list[tuple[int, str, int, Callable[[_Reader], None]]]:
    """For each opcode: kind, canonical name, cache units, reader."""
    plan = []
    for number in range(256):
        name = _NAMES.get(number, "")
        caches = TABLE.caches.get(name, 0)
        if number in READERS:
            plan.append((_READER, name, caches, READERS[number]))
        elif name in OPS:
            plan.append((_KIND_OF_OPERAND[OPS[name].operand], name, caches, _read_nothing))
        else:
            plan.append((_READER, name, caches, _read_unknown))
    return plan


def _jump_sign(name: str) -> int:
    return -1 if "BACKWARD" in name else 1


_PLAN: Final = _plan()
_JUMP_NAMES: Final = {name for pair in TABLE.jumps.values() for name in pair if name} | {
    "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP",
}  # fmt: skip
_JUMPS: Final = {_OPCODES[name]: _jump_sign(name) for name in _JUMP_NAMES if name in _OPCODES}
_FOR_ITER: Final = _OPCODES["FOR_ITER"]
_SEND: Final = _OPCODES["SEND"]


def _mark_targets(reader: _Reader, body: bytes) -> None:
    """Make the labels of all jump targets, so that the reading pass can place them as it goes by."""
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
            reader.label(target + (len(_FOR_EXIT) if opcode == _FOR_ITER else 0))
        elif opcode == _SEND and TABLE.explicit_end_send:
            reader.label(unit + 1 + caches + (body[2 * unit + 1] | extended))
        extended = 0
        unit += 1 + caches


def _read_instructions(reader: _Reader, body: bytes) -> None:
    """One pass over the code units; equal positions are shared."""
    ranges = list(reader.code.co_positions())
    ranges += [(None, None, None, None)] * (len(body) // 2 - len(ranges))  # tools cut line tables short, or away
    shared: dict[tuple[int | None, ...], Position | None] = {(None, None, None, None): None}
    plan, labels, send_targets, out = _PLAN, reader.labels, reader.send_targets, reader.out
    consts, names, slots = reader.consts, reader.names, reader.slots
    skip: set[int] = set()
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
            reader.arg, reader.position, reader.where = arg, position, unit
            if opcode in _JUMPS:
                reader.target = after + _JUMPS[opcode] * arg
                if opcode == _FOR_ITER and _FOR_EXIT:
                    skip.update(range(reader.target, reader.target + len(_FOR_EXIT)))
            read(reader)
        unit = after
    if units in labels:
        append(labels[units])


def _check_labels(reader: _Reader) -> None:
    """All that jumps and regions lead to must be a place between two instructions."""
    missing = set(reader.labels.values()).difference([item for item in reader.out if item.__class__ is Label])
    if missing:
        unit = min(unit for unit, label in reader.labels.items() if label in missing)
        raise DecodeError(f"{reader.code.co_name}: something leads to unit {unit}, where no instruction begins")


def _read_regions(reader: _Reader, entries: list[Entry]) -> list[Region]:
    """Regions of the table's entries; those that cover no instruction that is left are dropped."""
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


def _tell_locals_from_cells(bytecode: Bytecode) -> None:
    """Where a comprehension uses a cell's slot for its own variable, a load of the slot is no LOAD_CLOSURE.

    Everywhere else it is one, in a pair, too.
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
    depths = stack_depths(bytecode)
    for index in doubtful:
        item = items[index]
        if isinstance(item, Instr) and item.arg not in depths.raw_at(index):
            _rename(items, index, "LOAD_CLOSURE")


def _rename(items: list[Item], index: int, op: str) -> None:
    _, arg, position = items[index]  # type: ignore[misc]
    items[index] = _new(Instr, (op, arg, position))


def decode(code: CodeType) -> Bytecode:
    """The canonical form of a code object of the running CPython.

    Specialised and instrumented code reads like fresh code (`co_code` undoes both).
    Raises `TypeError` for anything else and `DecodeError` for code no compiler makes.
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
    reader = _Reader(code)
    body = code.co_code
    entries = read_exception_table(code.co_exceptiontable)
    _mark_targets(reader, body)
    for entry in entries:
        for unit in entry[:3]:
            reader.label(unit)
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
    if TABLE.closure_by_fast and code.co_nlocals and (code.co_cellvars or code.co_freevars):
        _tell_locals_from_cells(bytecode)
    return bytecode

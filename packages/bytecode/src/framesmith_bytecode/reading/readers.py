"""Readers of the running CPython's instructions into canonical ones: the state `Reader`, and the table `READERS`.

Opcodes with a canonical namesake and a plain operand need no row: `decode` reads them by a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Final, NoReturn

from framesmith_bytecode.cpython.opcodes import (
    BORROWS,
    CACHES,
    CLOSURE_BY_FAST,
    COMMON_CONSTANTS,
    CONDITIONAL_JUMPS,
    EXPLICIT_END_SEND,
    FUNCTION_ATTRIBUTES,
    HELPERS,
    JUMPS,
    OPCODES,
    PAIRS,
    PART_BITS,
    SPECIAL_METHODS,
)
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.model.bytecode import (
    COUNT_LIMITS,
    FREE_MARK,
    Instr,
    Item,
    Label,
    Position,
    why_not_instruction,
)
from framesmith_bytecode.model.ops import (
    BINARY_OPERATORS,
    COMPARISONS,
    CONVERSIONS,
    FUNCTION_PARTS,
    OPS,
    CallShape,
    InterpolationShape,
    SuperShape,
)

_PARTS: Final = {bit: part for part, bit in PART_BITS.items()}
_OWNING_LOADS: Final = frozenset(OPCODES[name] for name in ("LOAD_FAST", "LOAD_FAST_LOAD_FAST") if BORROWS)
_new: Final = tuple.__new__

FOR_EXIT: Final = bytes(OPCODES[name] for name in TABLE.for_exit)
"""The opcodes at the target of a FOR_ITER, skipped when the iterator is exhausted."""


class DecodeError(ValueError):
    """The code object has an instruction or entry that no compiler of this CPython makes."""


class Reader:
    """The state of decoding one code object; `out` grows, `arg` and `position` are those of the current instruction."""

    __slots__ = ("arg", "code", "consts", "kwnames", "labels", "names", "opcode", "out", "owning", "position",
                 "region_starts", "send_targets", "skip", "slots", "target", "where")  # fmt: skip

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.consts = code.co_consts
        self.names = code.co_names
        self.slots = _slot_names(code)
        self.out: list[Item] = []
        self.labels: dict[int, Label] = {}
        self.send_targets: dict[int, tuple[Label, Position | None]] = {}
        self.kwnames: tuple[str, ...] = ()
        #: Units that belong to an instruction read before.
        self.skip: set[int] = set()
        #: Loads of locals that the code does not let borrow: the last item of each.
        self.owning: list[int] = []
        self.region_starts: set[int] = set()
        self.opcode = 0
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
        """3.11's SEND drops the receiver when it jumps; control that falls through to here does not."""
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


def read_unknown(reader: Reader) -> NoReturn:
    raise DecodeError(f"{reader.code.co_name}: unit {reader.where}: this CPython's compiler emits no such opcode")


def read_nothing(reader: Reader) -> None:
    pass


def _read_make_cell(reader: Reader) -> None:
    if reader.out:  # the cells of the prologue are implied; this one belongs to an inlined comprehension
        reader.put("MAKE_CELL", reader.slots[reader.arg])


def _read_load_global(reader: Reader) -> None:
    null = reader.arg & 1
    if null and TABLE.null_first:
        reader.put("PUSH_NULL")
    reader.put("LOAD_GLOBAL", reader.names[reader.arg >> 1])
    if null and not TABLE.null_first:
        reader.put("PUSH_NULL")


def _read_load_super_attr(reader: Reader) -> None:
    op = "LOAD_SUPER_METHOD" if reader.arg & 1 else "LOAD_SUPER_ATTR"
    reader.put(op, SuperShape(reader.names[reader.arg >> 2], bool(reader.arg & 2)))


def _read_load_fast_or_closure(reader: Reader) -> None:
    slot, code = reader.slots[reader.arg], reader.code
    closure = reader.arg >= code.co_nlocals or slot in code.co_cellvars
    reader.put("LOAD_CLOSURE" if closure else "LOAD_FAST", slot)
    if reader.opcode in _OWNING_LOADS:
        reader.owning.append(len(reader.out) - 1)


def _read_local_pair(first: str, second: str) -> Callable[[Reader], None]:
    def read(reader: Reader) -> None:
        reader.put(first, reader.slots[reader.arg >> 4])
        reader.put(second, reader.slots[reader.arg & 15])
        if reader.opcode in _OWNING_LOADS:
            reader.owning.append(len(reader.out) - 1)

    return read


def _read_small_int(reader: Reader) -> None:
    reader.put("LOAD_CONST", reader.arg)


def _read_common_constant(reader: Reader) -> None:
    value = COMMON_CONSTANTS[reader.arg]
    if value is AssertionError:
        reader.put("LOAD_ASSERTION_ERROR")
    else:
        reader.put("LOAD_CONST", value)


def _read_not_taken(reader: Reader) -> None:
    """Implied behind conditional jumps; where the compiler marks another branch it does nothing."""
    last = next((item for item in reversed(reader.out) if isinstance(item, Instr)), None)
    if last is None or last.op not in CONDITIONAL_JUMPS or reader.where in reader.region_starts:
        reader.put("NOP")


# The special method looked up first, by the operation, and the instructions that follow.
_ENTERS: Final[Mapping[str, tuple[str, str]]] = {
    "BEFORE_WITH": ("__exit__", "__enter__"),
    "BEFORE_ASYNC_WITH": ("__aexit__", "__aenter__"),
}


def _read_load_special(reader: Reader) -> None:
    """A context manager is entered by COPY 1, LOAD_SPECIAL exit, SWAP 2, SWAP 3, LOAD_SPECIAL enter, CALL 0."""
    for op, (leave, enter) in _ENTERS.items():
        if SPECIAL_METHODS[reader.arg] == leave:
            rest = [("SWAP", 2), ("SWAP", 3), ("LOAD_SPECIAL", SPECIAL_METHODS.index(enter)), ("CALL", 0)]
            wanted = b"".join(bytes((OPCODES[name], arg)) for name, arg in rest)
            start = reader.where + 1
            if reader.code.co_code[2 * start : 2 * start + len(wanted)] == wanted:
                reader.take_last("COPY")
                reader.skip.update(range(start, start + len(rest) + CACHES["CALL"]))
                reader.put(op)
                return
    read_unknown(reader)


def _read_call_ex(reader: Reader) -> None:
    """With a mapping or NULL on top: NULL is pushed directly before."""
    last = reader.out[-1]
    has_mapping = not isinstance(last, Instr) or last.op != "PUSH_NULL"
    if not has_mapping:
        reader.out.pop()
    reader.put("CALL_FUNCTION_EX", has_mapping)


def _read_modes(ops: tuple[str, ...]) -> Callable[[Reader], None]:
    shift = len(ops).bit_length() - 1

    def read(reader: Reader) -> None:
        op, rest = ops[reader.arg & len(ops) - 1], reader.arg >> shift
        if not op or (rest and OPS[op].operand == "none"):
            read_unknown(reader)
        reader.put(op, reader.names[rest] if OPS[op].operand == "name" else None)

    return read


def _read_interpolation(reader: Reader) -> None:
    conversion = reader.arg >> 2
    shape = InterpolationShape(CONVERSIONS[conversion - 1] if conversion else "", bool(reader.arg & 1))
    reader.put("BUILD_INTERPOLATION", shape)


def _read_classderef(reader: Reader) -> None:
    reader.put("LOAD_LOCALS")
    reader.put("LOAD_FROM_DICT_OR_DEREF", reader.slots[reader.arg])


def _read_return_const(reader: Reader) -> None:
    reader.put("LOAD_CONST", reader.consts[reader.arg])
    reader.put("RETURN_VALUE")


def _read_binary_op(reader: Reader) -> None:
    if reader.arg == len(BINARY_OPERATORS):
        reader.put("BINARY_SUBSCR")
    else:
        reader.put("BINARY_OP", BINARY_OPERATORS[reader.arg])


def _read_compare(reader: Reader) -> None:
    reader.put("COMPARE_OP", COMPARISONS[reader.arg >> TABLE.compare_shift])
    if reader.arg & TABLE.compare_bool_bit:
        reader.put("TO_BOOL")


def _read_flag(op: str) -> Callable[[Reader], None]:
    return lambda reader: reader.put(op, bool(reader.arg & 1))


def _read_kw_names(reader: Reader) -> None:
    reader.kwnames = reader.consts[reader.arg]


def _read_call(reader: Reader) -> None:
    reader.put("CALL", CallShape(reader.arg, reader.kwnames))
    reader.kwnames = ()


def _read_call_kw(reader: Reader) -> None:
    names = reader.take_last("LOAD_CONST").arg
    reader.put("CALL", CallShape(reader.arg, names))


def _read_make_function_bits(reader: Reader) -> None:
    reader.put("MAKE_FUNCTION", frozenset(part for part, bit in PART_BITS.items() if reader.arg & bit))


def _read_make_function(reader: Reader) -> None:
    reader.put("MAKE_FUNCTION", frozenset())


def _read_function_attribute(reader: Reader) -> None:
    part = _PARTS[reader.arg]
    last = reader.out[-1]
    # Parts are attached from the last pushed to the first, as MAKE_FUNCTION's operand defines.
    if isinstance(last, Instr) and last.op == "MAKE_FUNCTION" and last.position == reader.position:
        later = FUNCTION_PARTS.index(part)
        if all(FUNCTION_PARTS.index(have) > later for have in last.arg):
            reader.out.pop()
            reader.put("MAKE_FUNCTION", last.arg | {part})
            return
    reader.put("SET_FUNCTION_ATTRIBUTE", part)


def _read_format_value(reader: Reader) -> None:
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


def _read_convert(reader: Reader) -> None:
    reader.put("CONVERT_VALUE", CONVERSIONS[reader.arg - 1])


def _read_unpack_ex(reader: Reader) -> None:
    reader.put("UNPACK_EX", (reader.arg & 255, reader.arg >> 8))


def _read_statement(op: str) -> Callable[[Reader], None]:
    def read(reader: Reader) -> None:
        reader.put(op)
        reader.put("POP_TOP")

    return read


def _read_intrinsic(call: str, numbers: Mapping[str, int]) -> Callable[[Reader], None]:
    names = {number: name for name, number in numbers.items()}

    def read(reader: Reader) -> None:
        name = names.get(reader.arg)
        if name is None:
            read_unknown(reader)
        elif name in OPS:
            reader.put(name)
        else:
            reader.put(call, name)

    return read


def _read_yield(reader: Reader) -> None:
    reader.put("YIELD_VALUE", None if TABLE.yield_index is None else reader.arg)


def _read_limited(op: str) -> Callable[[Reader], None]:
    def read(reader: Reader) -> None:
        problem = why_not_instruction(op, reader.arg)
        if problem is not None:
            raise DecodeError(f"{reader.code.co_name}: unit {reader.where}: {problem}")
        reader.put(op, reader.arg)

    return read


def _read_jump(op: str) -> Callable[[Reader], None]:
    return lambda reader: reader.put(op, reader.label(reader.target))


def _read_jump_or_pop(op: str) -> Callable[[Reader], None]:
    def read(reader: Reader) -> None:
        reader.put("COPY", 1)
        reader.put(op, reader.label(reader.target))
        reader.put("POP_TOP")

    return read


def _read_for_iter(reader: Reader) -> None:
    skipped = len(FOR_EXIT)
    body = reader.code.co_code
    found = body[reader.target * 2 : (reader.target + skipped) * 2 : 2]
    if found != FOR_EXIT:
        raise DecodeError(f"{reader.code.co_name}: unit {reader.where}: FOR_ITER does not lead to {TABLE.for_exit}")
    reader.put("FOR_ITER", reader.label(reader.target + skipped))


def _read_send(reader: Reader) -> None:
    if EXPLICIT_END_SEND:
        reader.put("SEND", reader.label(reader.target))
        return
    label, _ = reader.send_targets.setdefault(reader.target, (Label(), reader.position))
    reader.put("SEND", label)


def _make_readers() -> dict[int, Callable[[Reader], None]]:
    by_name: dict[str, Callable[[Reader], None]] = {
        "CACHE": read_nothing,
        "COPY_FREE_VARS": read_nothing,
        "PRECALL": read_nothing,
        "MAKE_CELL": _read_make_cell,
        "LOAD_GLOBAL": _read_load_global,
        "LOAD_SUPER_ATTR": _read_load_super_attr,
        "LOAD_CLASSDEREF": _read_classderef,
        "RETURN_CONST": _read_return_const,
        "BINARY_OP": _read_binary_op,
        "COMPARE_OP": _read_compare,
        "IS_OP": _read_flag("IS_OP"),
        "CONTAINS_OP": _read_flag("CONTAINS_OP"),
        "CALL_FUNCTION_EX": _read_call_ex if TABLE.ex_mapping else _read_flag("CALL_FUNCTION_EX"),
        "LOAD_SMALL_INT": _read_small_int,
        "LOAD_COMMON_CONSTANT": _read_common_constant,
        "LOAD_SPECIAL": _read_load_special,
        "NOT_TAKEN": _read_not_taken,
        "BUILD_INTERPOLATION": _read_interpolation,
        "KW_NAMES": _read_kw_names,
        "CALL": _read_call,
        "CALL_KW": _read_call_kw,
        "MAKE_FUNCTION": _read_make_function if FUNCTION_ATTRIBUTES else _read_make_function_bits,
        "SET_FUNCTION_ATTRIBUTE": _read_function_attribute,
        "FORMAT_VALUE": _read_format_value,
        "CONVERT_VALUE": _read_convert,
        "UNPACK_EX": _read_unpack_ex,
        "PRINT_EXPR": _read_statement("PRINT_EXPR"),
        "IMPORT_STAR": _read_statement("IMPORT_STAR"),
        **{call: _read_intrinsic(call, numbers) for call, numbers in HELPERS.items()},
        "LOAD_FAST_BORROW": _read_load_fast_or_closure,
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW": _read_local_pair("LOAD_FAST", "LOAD_FAST"),
        "YIELD_VALUE": _read_yield,
        "JUMP_FORWARD": _read_jump("JUMP"),
        "JUMP_IF_FALSE_OR_POP": _read_jump_or_pop("POP_JUMP_IF_FALSE"),
        "JUMP_IF_TRUE_OR_POP": _read_jump_or_pop("POP_JUMP_IF_TRUE"),
        "FOR_ITER": _read_for_iter,
        "SEND": _read_send,
        **{op: _read_limited(op) for op in COUNT_LIMITS},
    }
    for op, directions in JUMPS.items():
        for name in directions:
            if name is not None and name not in by_name:
                by_name[name] = _read_jump(op)
    for (first, second), name in PAIRS.items():
        by_name[name] = _read_local_pair(first, second)
    by_name.update({name: _read_modes(ops) for name, ops in TABLE.modes.items()})
    if CLOSURE_BY_FAST:
        by_name["LOAD_FAST"] = _read_load_fast_or_closure
    return {OPCODES[name]: reader for name, reader in by_name.items() if name in OPCODES}


READERS: Final = _make_readers()
"""The reader of each opcode that has one."""

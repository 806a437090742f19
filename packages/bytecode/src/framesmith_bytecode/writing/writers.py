"""Writers of canonical operations without an opcode of their own in the running CPython: `WRITERS`.

Pairs split by decoding are fused again if they have the same position and no label between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from framesmith_bytecode.cpython.opcodes import (
    BOOL_JUMPS,
    BORROWS,
    CLOSURE_BY_FAST,
    COMMON_CONSTANTS,
    EXPLICIT_END_SEND,
    FUNCTION_ATTRIBUTES,
    HELPERS,
    JUMPS,
    NOT_TAKEN,
    OPCODES,
    PAIRS,
    PART_BITS,
    SPECIAL_METHODS,
    UNCHECKED_FAST,
)
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.model.bytecode import Instr, Item, Label, Position
from framesmith_bytecode.model.ops import BINARY_OPERATORS, COMPARISONS, CONVERSIONS, FUNCTION_PARTS, OPS
from framesmith_bytecode.writing.constants import constant_key
from framesmith_bytecode.writing.lowered import Lowered

_COMPARE_MASKS: Final = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}
_INVERSE: Final = {
    "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}
_GIVES_BOOL: Final = frozenset(
    ("TO_BOOL", "UNARY_NOT", "IS_OP", "CONTAINS_OP", "CHECK_EXC_MATCH", "MATCH_MAPPING", "MATCH_SEQUENCE")
)
_CONSTANT_LOADS: Final = frozenset(OPCODES[name] for name in ("LOAD_CONST", "LOAD_SMALL_INT") if name in OPCODES)
_LOADS_METHOD: Final = {"LOAD_METHOD": 1, "LOAD_SUPER_METHOD": -1}  # and what they add to the stack
_OPERATOR_INDEX: Final = {operator: index for index, operator in enumerate(BINARY_OPERATORS)}

#: Ints from 0 up to this one are operands of LOAD_SMALL_INT.
_SMALL_INTS: Final = 256 if "LOAD_SMALL_INT" in OPCODES else 0
Writer = Callable[[Lowered, Any, Position | None], None]


#: The constants of LOAD_COMMON_CONSTANT; AssertionError is LOAD_ASSERTION_ERROR.
_COMMON: Final = {constant_key(value): index for index, value in enumerate(COMMON_CONSTANTS)}
_COMMON_TYPES: Final = frozenset(type(value) for value in COMMON_CONSTANTS)


def _load_const(low: Lowered, value: object, position: Position | None) -> None:
    if value.__class__ is int and 0 <= value < _SMALL_INTS:
        low.put("LOAD_SMALL_INT", value, position)
        return
    if value.__class__ in _COMMON_TYPES and value is not AssertionError:
        common = _COMMON.get(constant_key(value))
        if common is not None:
            low.put("LOAD_COMMON_CONSTANT", common, position)
            return
    low.put("LOAD_CONST", low.consts.index(value), position)


def _load_assertion_error(low: Lowered, arg: None, position: Position | None) -> None:
    low.put("LOAD_COMMON_CONSTANT", COMMON_CONSTANTS.index(AssertionError), position)


def _load_fast(low: Lowered, name: str, position: Position | None) -> None:
    checked = low.index in low.unbound
    if not checked and ("LOAD_FAST", "LOAD_FAST") in PAIRS and _fuse_pair(low, "LOAD_FAST", name, position):
        return
    if not checked and low.index in low.borrowable:
        low.put("LOAD_FAST_BORROW", low.slot(name), position)
        return
    low.put("LOAD_FAST_CHECK" if checked else "LOAD_FAST", low.slot(name), position)


def _store_fast(low: Lowered, name: str, position: Position | None) -> None:
    if PAIRS and not low.stack_states.restores(low.index) and _fuse_pair(low, "STORE_FAST", name, position):
        return
    low.put("STORE_FAST", low.slot(name), position)


def _fuse_pair(low: Lowered, second: str, name: str, position: Position | None) -> bool:
    slot = low.slot(name)
    for first in ("LOAD_FAST", "STORE_FAST"):
        pair = PAIRS.get((first, second))
        if pair is None or low.last_op != first:
            continue
        borrows = first == "LOAD_FAST" and BORROWS and low.previous("LOAD_FAST_BORROW", position)
        if borrows or low.previous(first, position):
            before = low.units[-1][1]
            if isinstance(before, int) and before < 16 and slot < 16:
                if borrows and low.index in low.borrowable:  # both do, or neither
                    pair = "LOAD_FAST_BORROW_LOAD_FAST_BORROW"
                low.units[-1] = (OPCODES[pair], before << 4 | slot, position)
                return True
    return False


def _load_fast_check(low: Lowered, name: str, position: Position | None) -> None:
    low.put("LOAD_FAST_CHECK" if UNCHECKED_FAST else "LOAD_FAST", low.slot(name), position)


def _load_closure(low: Lowered, name: str, position: Position | None) -> None:
    if low.index in low.borrowable:
        low.put("LOAD_FAST_BORROW", low.cell(name), position)
    else:
        low.put("LOAD_FAST" if CLOSURE_BY_FAST else "LOAD_CLOSURE", low.cell(name), position)


def _load_from_dict_or_deref(low: Lowered, name: str, position: Position | None) -> None:
    if "LOAD_FROM_DICT_OR_DEREF" in OPCODES:
        low.put("LOAD_FROM_DICT_OR_DEREF", low.cell(name), position)
    elif low.last_op == "LOAD_LOCALS":
        low.put("LOAD_CLASSDEREF", low.cell(name), position)
    else:
        raise low.fail("CPython 3.11 can look up a cell only after LOAD_LOCALS")


def _load_locals(low: Lowered, arg: None, position: Position | None) -> None:
    if "LOAD_LOCALS" in OPCODES:
        low.put("LOAD_LOCALS", 0, position)
        return
    following = low.bytecode.instructions[low.index + 1 : low.index + 2]
    if not following or not isinstance(following[0], Instr) or following[0].op != "LOAD_FROM_DICT_OR_DEREF":
        raise low.fail("CPython 3.11 has LOAD_LOCALS only directly before LOAD_FROM_DICT_OR_DEREF")


def _push_null(low: Lowered, arg: None, position: Position | None) -> None:
    if not TABLE.null_first and low.last_op == "LOAD_GLOBAL" and low.previous("LOAD_GLOBAL", position):
        before = low.units[-1][1]
        assert isinstance(before, int)
        low.units[-1] = (OPCODES["LOAD_GLOBAL"], before | 1, position)
        return
    low.put("PUSH_NULL", 0, position)


def _load_global(low: Lowered, name: str, position: Position | None) -> None:
    arg = low.name_index(name) << 1
    if TABLE.null_first and low.previous("PUSH_NULL", position):
        low.units[-1] = (OPCODES["LOAD_GLOBAL"], arg | 1, position)
        return
    low.put("LOAD_GLOBAL", arg, position)


def _load_super(method: int) -> Writer:
    def write(low: Lowered, shape: Any, position: Position | None) -> None:
        if "LOAD_SUPER_ATTR" not in OPCODES:
            raise low.fail("CPython 3.11 has no such instruction; call super")
        low.put("LOAD_SUPER_ATTR", low.name_index(shape.name) << 2 | shape.two_args << 1 | method, position)

    return write


def _binary_subscr(low: Lowered, arg: None, position: Position | None) -> None:
    if "BINARY_SUBSCR" in OPCODES:
        low.put("BINARY_SUBSCR", 0, position)
    else:
        low.put("BINARY_OP", len(BINARY_OPERATORS), position)


def _slice(with_slice: str, with_subscript: str) -> Writer:
    def write(low: Lowered, arg: None, position: Position | None) -> None:
        if with_slice in OPCODES:
            low.put(with_slice, 0, position)
        else:
            low.put("BUILD_SLICE", 2, position)
            low.put(with_subscript, 0, position)

    return write


def _to_bool(low: Lowered, arg: None, position: Position | None) -> None:
    if BOOL_JUMPS:
        if low.last_op == "COMPARE_OP" and low.previous("COMPARE_OP", position):
            before = low.units[-1][1]
            assert isinstance(before, int)
            low.units[-1] = (OPCODES["COMPARE_OP"], before | TABLE.compare_bool_bit, position)
        else:
            low.put("TO_BOOL", 0, position)
        return
    following = low.bytecode.instructions[low.index + 1 : low.index + 2]
    tests = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT")
    if not following or not isinstance(following[0], Instr) or following[0].op not in tests:
        low.put("UNARY_NOT", 0, position)
        low.put("UNARY_NOT", 0, position)


def _is_length_test(low: Lowered) -> bool:
    """Whether a comparison of GET_LEN with a constant precedes: the compiler knows that its result is a bool."""
    tail = [unit[0] for unit in low.units[low.barrier :][-3:]]
    return tail[:1] == [OPCODES["GET_LEN"]] and tail[1] in _CONSTANT_LOADS and tail[2:] == [OPCODES["COMPARE_OP"]]


def _is_format_test(low: Lowered) -> bool:
    """Whether this is the first test of a function that computes annotations: of an int, the compiler says."""
    bytecode = low.bytecode
    parameter = bytecode.varnames[0] if bytecode.posonlyargcount == 1 else ""
    if parameter != ".format" and (parameter, bytecode.name) != ("format", "__annotate__"):
        return False
    first = [item for item in bytecode.instructions[: low.index] if isinstance(item, Instr)]
    ops = [(item.op, item.arg) for item in first]
    return ops == [("RESUME", 0), ("LOAD_FAST", parameter), ("LOAD_CONST", 2), ("COMPARE_OP", ">")]


def _want_bool(low: Lowered, position: Position | None) -> None:
    if not BOOL_JUMPS or low.last_op in _GIVES_BOOL:
        return
    if not _is_length_test(low) and not (low.last_op == "COMPARE_OP" and _is_format_test(low)):
        _to_bool(low, None, position)


def _unary_not(low: Lowered, arg: None, position: Position | None) -> None:
    _want_bool(low, position)
    low.put("UNARY_NOT", 0, position)


def _binary_op(low: Lowered, operator: str, position: Position | None) -> None:
    low.put("BINARY_OP", _OPERATOR_INDEX[operator], position)


def _compare_op(low: Lowered, operator: str, position: Position | None) -> None:
    mask = _COMPARE_MASKS[operator] if TABLE.compare_shift else 0
    low.put("COMPARE_OP", COMPARISONS.index(operator) << TABLE.compare_shift | mask, position)


def _not_taken(low: Lowered, position: Position | None) -> None:
    if NOT_TAKEN:
        low.not_taken = len(low.units)
        low.implied[low.not_taken] = low.index
        low.put("NOT_TAKEN", 0, position)


def _nop(low: Lowered, arg: None, position: Position | None) -> None:
    """Behind an END_SEND the compiler marks with it that an asynchronous loop goes on.

    In a region of its own behind a conditional jump it is the NOT_TAKEN of the jump.
    """
    behind_jump = low.run and low.not_taken == len(low.units) - 1 and low.units[-1][2] == position
    if behind_jump and any(region.start in low.run for region in low.bytecode.regions):
        low.labels.update(dict.fromkeys(low.run, low.not_taken))
        del low.implied[low.not_taken]
        low.not_taken = -2
        return
    low.put("NOT_TAKEN" if NOT_TAKEN and low.last_op == "END_SEND" else "NOP", 0, position)


def _jump(op: str) -> Writer:
    forward, backward = JUMPS[op]
    tests_truth = op in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
    conditional = op in _INVERSE

    def write(low: Lowered, label: Label, position: Position | None) -> None:
        if tests_truth:
            _want_bool(low, position)
        if label not in low.labels:
            low.put(forward, label, position)
            if conditional:
                _not_taken(low, position)
        elif backward is not None:
            low.put(backward, label, position)
            if op == "JUMP_NO_INTERRUPT":
                low.wait_ends[low.index] = len(low.units)
        else:  # this CPython has unconditional backward jumps only
            around = Label()
            low.put(JUMPS[_INVERSE[op]][0], around, position)
            _not_taken(low, position)
            low.put("JUMP_BACKWARD", label, position)
            low.labels[around] = len(low.units)

    return write


def _for_iter(low: Lowered, label: Label, position: Position | None) -> None:
    if label in low.labels:
        through = Label()
        low.tail.append((through, label, position, low.index))
    else:
        through = low.loop_exits.setdefault(label, (Label(), position, low.index))[0]
    low.put("FOR_ITER", through, position)


def _send(low: Lowered, label: Label, position: Position | None) -> None:
    if label in low.labels:
        raise low.fail("SEND cannot jump backward")
    low.put("SEND", label if EXPLICIT_END_SEND else low.send_exits.setdefault(label, Label()), position)


def _end_send(low: Lowered, arg: None, position: Position | None) -> None:
    if EXPLICIT_END_SEND:
        low.put("END_SEND", 0, position)
        return
    # SEND of 3.11 drops the receiver itself and jumps behind this; other paths to here do not.
    sends = [label for label in low.run if label in low.send_exits]
    if not sends or low.run_falls or low.is_jump_target(low.run):
        low.put("SWAP", 2, position)
        low.put("POP_TOP", 0, position)
    for label in sends:
        low.labels[low.send_exits[label]] = len(low.units)
    low.barrier = len(low.units)


def _pop_top(low: Lowered, arg: None, position: Position | None) -> None:
    is_statement = low.last_op in ("PRINT_EXPR", "IMPORT_STAR") and low.last_op in OPCODES
    if is_statement and low.previous("LOAD_CONST", position):
        low.units.pop()
        return
    may_fuse = "JUMP_IF_TRUE_OR_POP" in OPCODES and low.last_op.startswith("POP_JUMP_IF_")
    if may_fuse and low.previous("COPY", position, 2):
        for test in ("TRUE", "FALSE"):
            copied, jump = low.units[-2:]
            if copied[1] == 1 and low.previous(f"POP_JUMP_FORWARD_IF_{test}", position):
                low.units[-2:] = [(OPCODES[f"JUMP_IF_{test}_OR_POP"], jump[1], position)]
                return
    low.put("POP_TOP", 0, position)


def _flag(op: str) -> Writer:
    return lambda low, arg, position: low.put(op, int(arg), position)


def _names_position(low: Lowered, shape: Any, position: Position | None) -> Position | None:
    """The position of a call's keyword names: the method's name if it is on the same line, as in the compiler."""
    before, items = low.stack_states.before, low.bytecode.instructions
    depth = before[low.index]
    if depth is None or position is None:
        return position
    base = depth - shape.argc
    for index, item in _back_along_a_path(items, low.index):
        known = before[index]
        if known is None:
            continue
        if item.op in _LOADS_METHOD and known + _LOADS_METHOD[item.op] == base:
            return _where_the_name_is(item, position)
        if known < base:
            break
    return position


def _where_the_name_is(method: Instr, call: Position) -> Position:
    """The position of a method's name, or of the call if the load of the method does not end on the call's line.

    A method of `super()` that stands on another line is loaded at the whole range; the call starts at the name.
    """
    if method.position is None or method.position.lineno == call.lineno:
        return method.position or call
    if method.op == "LOAD_SUPER_METHOD" and method.position.end_lineno == call.lineno:
        return method.position._replace(lineno=call.lineno, col_offset=call.col_offset)
    return call


def _back_along_a_path(items: Sequence[Item], index: int) -> Iterator[tuple[int, Instr]]:
    """The instructions before `index`, backward; from a label that is only jumped to on at a jump to it."""
    labels: list[Label] = []
    while index > 0:
        index -= 1
        item = items[index]
        if isinstance(item, Label):
            labels.append(item)
            continue
        if labels and OPS[item.op].flow in ("jump", "return", "raise"):
            jumps = ((i, jump) for i, jump in enumerate(items[:index]) if isinstance(jump, Instr))
            found = next(((i, jump) for i, jump in jumps if isinstance(jump.arg, Label) and jump.arg in labels), None)
            if found is None:
                return
            index, item = found
        labels.clear()
        yield index, item


def _call_function_ex(low: Lowered, has_mapping: bool, position: Position | None) -> None:
    if not TABLE.ex_mapping:
        low.put("CALL_FUNCTION_EX", int(has_mapping), position)
        return
    if not has_mapping:
        low.reserve(1)
        if len(low.units) > low.barrier and low.units[-1][0] == OPCODES["LOAD_GLOBAL"]:
            _push_null(low, None, low.units[-1][2])
        else:
            low.put("PUSH_NULL", 0, position)
    low.put("CALL_FUNCTION_EX", 0, position)


def _before_with(op: str, leave: str, enter: str) -> Writer:
    def write(low: Lowered, arg: None, position: Position | None) -> None:
        if op in OPCODES:
            low.put(op, 0, position)
            return
        methods = SPECIAL_METHODS
        low.put("COPY", 1, position)
        low.put("LOAD_SPECIAL", methods.index(leave), position)
        low.put("SWAP", 2, position)
        low.put("SWAP", 3, position)
        low.put("LOAD_SPECIAL", methods.index(enter), position)
        low.put("CALL", 0, position)
        low.reserve(3)

    return write


def _end_async_for(low: Lowered, arg: None, position: Position | None) -> None:
    """The operand leads back to where the loop goes on: the END_SEND of the GET_ANEXT whose handler this is."""
    origin = low.loop_of_handler() if TABLE.async_for_origin else None
    low.put("END_ASYNC_FOR", 0 if origin is None else origin, position)


def _build_const_key_map(low: Lowered, n: int, position: Position | None) -> None:
    if "BUILD_CONST_KEY_MAP" in OPCODES:
        low.put("BUILD_CONST_KEY_MAP", n, position)
        return
    low.put("UNPACK_SEQUENCE", n, position)  # value 1, ..., value n, key n, ..., key 1
    low.put("BUILD_MAP", 0, position)
    for index in range(n):
        low.put("COPY", 2 + index, position)
        low.put("COPY", 2 * n + 2 - index, position)
        low.put("MAP_ADD", 1, position)
    if n:
        low.put("SWAP", 2 * n + 1, position)
    for _ in range(2 * n):
        low.put("POP_TOP", 0, position)
    low.reserve(n + 2)


def _build_interpolation(low: Lowered, shape: Any, position: Position | None) -> None:
    conversion = CONVERSIONS.index(shape.conversion) + 1 if shape.conversion else 0
    low.put("BUILD_INTERPOLATION", conversion << 2 | 2 | shape.has_format, position)


def _mode(name: str, mode: int, modes: int) -> Writer:
    shift = modes.bit_length() - 1

    def write(low: Lowered, arg: str | None, position: Position | None) -> None:
        low.put(name, (0 if arg is None else low.name_index(arg) << shift) | mode, position)

    return write


def _pop_iter(low: Lowered, arg: None, position: Position | None) -> None:
    low.put("POP_ITER" if "POP_ITER" in OPCODES else "POP_TOP", 0, position)


def _call(low: Lowered, shape: Any, position: Position | None) -> None:
    if "CALL_KW" in OPCODES:
        if not shape.kwnames:
            low.put("CALL", shape.argc, position)
            return
        low.put("LOAD_CONST", low.consts.index(shape.kwnames), _names_position(low, shape, position))
        low.put("CALL_KW", shape.argc, position)
        low.reserve(1)
        return
    if shape.kwnames:
        low.put("KW_NAMES", low.consts.index(shape.kwnames), _names_position(low, shape, position))
    if "PRECALL" in OPCODES:
        low.put("PRECALL", shape.argc, position)
    low.put("CALL", shape.argc, position)


def _part_bit(low: Lowered, part: str) -> int:
    bit = PART_BITS.get(part)
    if bit is None:
        raise low.fail(f"functions of this CPython have no {part}")
    return bit


def _make_function(low: Lowered, parts: Any, position: Position | None) -> None:
    if not FUNCTION_ATTRIBUTES:
        low.put("MAKE_FUNCTION", sum(_part_bit(low, part) for part in parts), position)
        return
    low.put("MAKE_FUNCTION", 0, position)
    for part in reversed(FUNCTION_PARTS):
        if part in parts:
            low.put("SET_FUNCTION_ATTRIBUTE", _part_bit(low, part), position)


def _set_function_attribute(low: Lowered, part: str, position: Position | None) -> None:
    if not FUNCTION_ATTRIBUTES:
        raise low.fail("this CPython gives functions their parts in MAKE_FUNCTION")
    low.put("SET_FUNCTION_ATTRIBUTE", _part_bit(low, part), position)


def _convert_value(low: Lowered, conversion: str, position: Position | None) -> None:
    number = CONVERSIONS.index(conversion) + 1
    low.put("CONVERT_VALUE" if "CONVERT_VALUE" in OPCODES else "FORMAT_VALUE", number, position)


def _format_simple(low: Lowered, arg: None, position: Position | None) -> None:
    if "CONVERT_VALUE" in OPCODES:
        low.put("FORMAT_SIMPLE", 0, position)
    elif not (low.last_op == "CONVERT_VALUE" and low.previous("FORMAT_VALUE", position)):
        low.put("FORMAT_VALUE", 0, position)


def _format_with_spec(low: Lowered, arg: None, position: Position | None) -> None:
    if "CONVERT_VALUE" in OPCODES:
        low.put("FORMAT_WITH_SPEC", 0, position)
        return
    swaps = low.previous("SWAP", position) and low.previous("SWAP", position, 3)
    if swaps and low.previous("FORMAT_VALUE", position, 2):
        first, convert, second = low.units[-3:]
        if first[1] == second[1] == 2 and isinstance(convert[1], int) and 1 <= convert[1] <= 3:
            low.units[-3:] = [(OPCODES["FORMAT_VALUE"], convert[1] | 4, position)]
            return
    low.put("FORMAT_VALUE", 4, position)


def _unpack_ex(low: Lowered, pair: Any, position: Position | None) -> None:
    low.put("UNPACK_EX", pair[0] | pair[1] << 8, position)


def _return_value(low: Lowered, arg: None, position: Position | None) -> None:
    if "RETURN_CONST" in OPCODES and low.last_op == "LOAD_CONST" and low.previous("LOAD_CONST", position):
        low.units[-1] = (OPCODES["RETURN_CONST"], low.units[-1][1], position)
        return
    low.put("RETURN_VALUE", 0, position)


def _return_generator(low: Lowered, arg: None, position: Position | None) -> None:
    low.put("RETURN_GENERATOR", 0, position)
    low.resume_first(low.index + 1)


def _yield_value(low: Lowered, arg: int | None, position: Position | None) -> None:
    default = TABLE.yield_index or 0
    low.put("YIELD_VALUE", default if arg is None or TABLE.yield_index is None else arg, position)


def _index(op: str) -> Writer:
    return lambda low, arg, position: low.put(op, arg or 0, position)


def _statement(op: str) -> Writer:
    """An operation of one opcode on 3.11 that pushes nothing, and an intrinsic pushing None later."""

    def write(low: Lowered, arg: None, position: Position | None) -> None:
        if op in OPCODES:
            low.put(op, 0, position)
            _load_const(low, None, position)
        else:
            low.put("CALL_INTRINSIC_1", HELPERS["CALL_INTRINSIC_1"][op], position)

    return write


def _intrinsic(call: str, numbers: Mapping[str, int], op: str) -> Writer:
    return lambda low, arg, position: low.put(call, numbers[op], position)


def _named_intrinsic(call: str, numbers: Mapping[str, int]) -> Writer:
    def write(low: Lowered, name: str, position: Position | None) -> None:
        if name not in numbers:
            raise low.fail(f"this CPython has no helper {name}")
        low.put(call, numbers[name], position)

    return write


def _missing(low: Lowered, arg: object, position: Position | None) -> None:
    raise low.fail("this CPython has no such instruction")


def _make_writers() -> dict[str, Writer]:
    writers: dict[str, Writer] = {
        "NOP": _nop,
        "LOAD_CONST": _load_const,
        "LOAD_FAST": _load_fast,
        "STORE_FAST": _store_fast,
        "LOAD_FAST_CHECK": _load_fast_check,
        "LOAD_CLOSURE": _load_closure,
        "LOAD_FROM_DICT_OR_DEREF": _load_from_dict_or_deref,
        "LOAD_LOCALS": _load_locals,
        "PUSH_NULL": _push_null,
        "LOAD_GLOBAL": _load_global,
        "LOAD_SUPER_ATTR": _load_super(0),
        "LOAD_SUPER_METHOD": _load_super(1),
        "BINARY_SUBSCR": _binary_subscr,
        "BINARY_SLICE": _slice("BINARY_SLICE", "BINARY_SUBSCR"),
        "STORE_SLICE": _slice("STORE_SLICE", "STORE_SUBSCR"),
        "TO_BOOL": _to_bool,
        "UNARY_NOT": _unary_not,
        "BINARY_OP": _binary_op,
        "COMPARE_OP": _compare_op,
        "IS_OP": _flag("IS_OP"),
        "CONTAINS_OP": _flag("CONTAINS_OP"),
        "CALL_FUNCTION_EX": _call_function_ex,
        "BEFORE_WITH": _before_with("BEFORE_WITH", "__exit__", "__enter__"),
        "BEFORE_ASYNC_WITH": _before_with("BEFORE_ASYNC_WITH", "__aexit__", "__aenter__"),
        "END_ASYNC_FOR": _end_async_for,
        "BUILD_CONST_KEY_MAP": _build_const_key_map,
        "BUILD_INTERPOLATION": _build_interpolation,
        "POP_ITER": _pop_iter,
        "IMPORT_NAME_MAYBE_LAZY": _mode("IMPORT_NAME", 0, 1),
        "END_SEND": _end_send,
        "POP_TOP": _pop_top,
        "CALL": _call,
        "MAKE_FUNCTION": _make_function,
        "SET_FUNCTION_ATTRIBUTE": _set_function_attribute,
        "CONVERT_VALUE": _convert_value,
        "FORMAT_SIMPLE": _format_simple,
        "FORMAT_WITH_SPEC": _format_with_spec,
        "UNPACK_EX": _unpack_ex,
        "RETURN_VALUE": _return_value,
        "RETURN_GENERATOR": _return_generator,
        "YIELD_VALUE": _yield_value,
        "RESUME": _index("RESUME"),
        "GET_AWAITABLE": _index("GET_AWAITABLE"),
        "PRINT_EXPR": _statement("PRINT_EXPR"),
        "IMPORT_STAR": _statement("IMPORT_STAR"),
    }
    for name, ops in TABLE.modes.items():
        writers.update({op: _mode(name, mode, len(ops)) for mode, op in enumerate(ops) if op})
    writers.update({op: _jump(op) for op in JUMPS})
    writers.update({"FOR_ITER": _for_iter, "SEND": _send})
    for call, numbers in HELPERS.items():
        writers[call] = _named_intrinsic(call, numbers)
        writers.update({op: _intrinsic(call, numbers, op) for op in numbers if op in OPS and op not in writers})
    if "LOAD_ASSERTION_ERROR" not in OPCODES:
        writers["LOAD_ASSERTION_ERROR"] = _load_assertion_error
    if "BUILD_INTERPOLATION" not in OPCODES:
        writers["BUILD_INTERPOLATION"] = _missing
    writers.update({op: _missing for op in OPS if op not in writers and op not in OPCODES})
    return writers


WRITERS: Final = _make_writers()

"""The running interpreter's opcodes, caches, helpers and shared constants, and the facts that their names give.

The interpreter's `opcode` module has the numbers: a version that changes nothing else needs none of them here.
"""

from __future__ import annotations

import itertools
import opcode
from collections.abc import Mapping
from types import FunctionType
from typing import Any, Final

#: Name -> number, without the numbers that only instrumented code has.
OPCODES: Final[Mapping[str, int]] = {
    name: number for name, number in opcode.opmap.items() if number < 256 and not name.startswith("INSTRUMENTED_")
}
#: Number -> name.
NAMES: Final[Mapping[int, str]] = {number: name for name, number in OPCODES.items()}


def _cache_sizes() -> dict[str, int]:
    entries: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]
    by_number = isinstance(entries, list)
    return {name: entries[number] if by_number else entries.get(name, 0) for name, number in OPCODES.items()}


#: Name -> code units of cache behind the instruction.
CACHES: Final[Mapping[str, int]] = _cache_sizes()


def _listed(operation: str, names: str) -> tuple[Any, ...]:
    """Return the interpreter's list of an operation's operands, which is empty where it has no such opcode.

    Raises ImportError where it has the opcode and the `opcode` module has no list of that name, or an empty one.
    """
    listed = tuple(getattr(opcode, names, ()))
    if operation in OPCODES and not listed:
        raise ImportError(f"framesmith_bytecode finds no operands of {operation}: opcode.{names} is missing or empty")
    return listed


def _helpers(operation: str, names: str) -> dict[str, int]:
    """Name of a helper -> its number; number 0 is no helper."""
    listed = [name.removeprefix("INTRINSIC_") for name in _listed(operation, names)]
    return {"PRINT_EXPR" if name == "PRINT" else name: number for number, name in enumerate(listed) if number}


#: Operation that calls a helper of the interpreter -> the helpers' numbers.
HELPERS: Final[Mapping[str, Mapping[str, int]]] = {
    operation: _helpers(operation, names)
    for operation, names in (("CALL_INTRINSIC_1", "_intrinsic_1_descs"), ("CALL_INTRINSIC_2", "_intrinsic_2_descs"))
}
#: The objects that LOAD_COMMON_CONSTANT loads, by its operand.
COMMON_CONSTANTS: Final[tuple[object, ...]] = _listed("LOAD_COMMON_CONSTANT", "_common_constants")
#: The methods that LOAD_SPECIAL looks up, by its operand.
SPECIAL_METHODS: Final[tuple[str, ...]] = _listed("LOAD_SPECIAL", "_special_method_names")
#: A part of a function -> its bit in MAKE_FUNCTION or SET_FUNCTION_ATTRIBUTE.
PART_BITS: Final[Mapping[str, int]] = {
    "defaults": 1,
    "kwdefaults": 2,
    "annotations": 4,
    "closure": 8,
    **({"annotate": 16} if "__annotate__" in vars(FunctionType) else {}),
}
CONDITIONAL_JUMPS: Final = tuple(f"POP_JUMP_IF_{test}" for test in ("FALSE", "TRUE", "NONE", "NOT_NONE"))


def _ways(jump: str) -> tuple[str, str | None]:
    return (jump, None) if jump in OPCODES else (f"POP_JUMP_FORWARD{jump[8:]}", f"POP_JUMP_BACKWARD{jump[8:]}")


#: Canonical jump -> (forward opcode, backward opcode or None).
JUMPS: Final[Mapping[str, tuple[str, str | None]]] = {
    "JUMP": ("JUMP_FORWARD", "JUMP_BACKWARD"),
    "JUMP_NO_INTERRUPT": ("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
    **{jump: _ways(jump) for jump in CONDITIONAL_JUMPS},
    "FOR_ITER": ("FOR_ITER", None),
    "SEND": ("SEND", None),
}
#: (first, second) -> the opcode of both in one.
PAIRS: Final[Mapping[tuple[str, str], str]] = {
    (first, second): f"{first}_{second}"
    for first, second in itertools.product(("LOAD_FAST", "STORE_FAST"), repeat=2)
    if f"{first}_{second}" in OPCODES
}
#: SEND leaves the receiver on the stack, END_SEND drops it.
EXPLICIT_END_SEND: Final = "END_SEND" in OPCODES
#: Conditional jumps and UNARY_NOT require an exact bool on the stack.
BOOL_JUMPS: Final = "TO_BOOL" in OPCODES
#: LOAD_FAST does not check that the local is bound.
UNCHECKED_FAST: Final = "LOAD_FAST_CHECK" in OPCODES
#: MAKE_FUNCTION takes code only, SET_FUNCTION_ATTRIBUTE adds the parts.
FUNCTION_ATTRIBUTES: Final = "SET_FUNCTION_ATTRIBUTE" in OPCODES
#: LOAD_CLOSURE is LOAD_FAST of a cell's slot.
CLOSURE_BY_FAST: Final = "LOAD_CLOSURE" not in OPCODES
#: A NOT_TAKEN follows every conditional jump.
NOT_TAKEN: Final = "NOT_TAKEN" in OPCODES
#: LOAD_FAST_BORROW loads a local without a reference of its own.
BORROWS: Final = "LOAD_FAST_BORROW" in OPCODES

"""The differences between CPython versions as one record; its values are in py311.py, py312.py and py313.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionTable:
    """The instruction encoding of one CPython version.

    `null_first`: the NULL of a call is under the callable (else above it).
    `jumps`: canonical jump -> (forward opcode, backward opcode or None).
    `for_exit`: opcodes at the target of FOR_ITER, skipped when the iterator is exhausted.
    `explicit_end_send`: SEND leaves the receiver on the stack, END_SEND drops it.
    `calls`: encoding of keyword names of CALL. `strings`: encoding of f-strings.
    `compare_shift`, `compare_bool_bit`: position of COMPARE_OP's operator, and the bit that converts to bool.
    `compare_masks`: the low bits of COMPARE_OP's operand are the outcomes (less, greater, equal) that it accepts.
    `attr_method_bit`: LOAD_METHOD is LOAD_ATTR with the low bit set.
    `intrinsics_1`, `intrinsics_2`: canonical operation or helper name -> number.
    `return_const`: LOAD_CONST, RETURN_VALUE are one RETURN_CONST.
    `bool_jumps`: conditional jumps and UNARY_NOT require an exact bool on the stack.
    `unchecked_fast`: LOAD_FAST does not check that the local is bound.
    `function_attributes`: MAKE_FUNCTION takes code only, SET_FUNCTION_ATTRIBUTE adds the parts.
    `closure_by_fast`: LOAD_CLOSURE is LOAD_FAST of a cell's slot.
    `pairs`: (first, second) -> opcode of a fused pair of local-variable operations.
    `errors_look_back`: look up their handler one code unit early when a called function raised.
    `yield_index`: the default operand of YIELD_VALUE, None if it has no operand.
    """

    version: tuple[int, int]
    opcodes: Mapping[str, int]
    caches: Mapping[str, int]
    null_first: bool
    jumps: Mapping[str, tuple[str, str | None]]
    for_exit: tuple[str, ...]
    explicit_end_send: bool
    calls: Literal["precall", "kw_names", "call_kw"]
    strings: Literal["format_value", "convert_value"]
    compare_shift: int
    compare_masks: bool
    compare_bool_bit: int
    attr_method_bit: bool
    return_const: bool
    bool_jumps: bool
    unchecked_fast: bool
    function_attributes: bool
    closure_by_fast: bool
    yield_index: int | None
    errors_look_back: frozenset[str] = frozenset()
    intrinsics_1: Mapping[str, int] = field(default_factory=dict)
    intrinsics_2: Mapping[str, int] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def names(self) -> Mapping[int, str]:
        """Opcode number -> version name."""
        return {number: name for name, number in self.opcodes.items()}

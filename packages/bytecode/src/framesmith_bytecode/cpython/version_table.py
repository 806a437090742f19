"""The differences between CPython versions as one record; its values are in the files py3NN.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

_PART_BITS = {"defaults": 1, "kwdefaults": 2, "annotations": 4, "closure": 8}


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
    `exit_slots`: slots in which BEFORE_WITH leaves the exit method: 1, or 2 with its self or NULL above it.
    `not_taken`: a NOT_TAKEN follows every conditional jump.
    `borrows`: LOAD_FAST_BORROW loads a local without a reference of its own.
    `ex_mapping`: CALL_FUNCTION_EX always pops a mapping, or NULL in its place.
    `async_for_origin`: the operand of END_ASYNC_FOR is the distance back to the loop's END_SEND.
    `small_ints`: ints from 0 up to this one are operands of LOAD_SMALL_INT; 0 if there is no such instruction.
    `common_constants`: the objects that LOAD_COMMON_CONSTANT loads, by its operand.
    `part_bits`: a part of a function -> its bit in MAKE_FUNCTION or SET_FUNCTION_ATTRIBUTE.
    `iterator_slots`: slots of an iterator in a loop or a SEND: 1, or 2 with an index or NULL above it.
    `yield_from_iter`: the operand of GET_ITER that makes it GET_YIELD_FROM_ITER; 0 if that is an opcode.
    `generators_iterate`: a generator expression calls iter() itself, before it becomes a generator.
    `import_modes`: the operations that IMPORT_NAME stands for, by the low two bits of its operand.
    `resume_mask`: the bits of RESUME's operand that say where it stands.
    `special_methods`: the methods that LOAD_SPECIAL looks up, by its operand.
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
    exit_slots: int = 1
    not_taken: bool = False
    borrows: bool = False
    ex_mapping: bool = False
    async_for_origin: bool = False
    small_ints: int = 0
    common_constants: tuple[object, ...] = ()
    part_bits: Mapping[str, int] = field(default_factory=lambda: _PART_BITS)
    iterator_slots: int = 1
    yield_from_iter: int = 0
    generators_iterate: bool = False
    import_modes: tuple[str, ...] = ()
    resume_mask: int = 3
    special_methods: tuple[str, ...] = ()
    errors_look_back: frozenset[str] = frozenset()
    intrinsics_1: Mapping[str, int] = field(default_factory=dict)
    intrinsics_2: Mapping[str, int] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def names(self) -> Mapping[int, str]:
        """Opcode number -> version name."""
        return {number: name for name, number in self.opcodes.items()}

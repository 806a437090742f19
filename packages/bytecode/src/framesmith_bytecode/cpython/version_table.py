"""The differences between CPython versions that do not follow from its opcodes: a row of changes for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionTable:
    """The behaviour of one CPython version.

    `null_first`: the NULL of a call is under the callable (else above it).
    `for_exit`: opcodes at the target of FOR_ITER, skipped when the iterator is exhausted.
    `compare_shift`: bits of COMPARE_OP's operand below the operator; the low four, where there are any, are the
    outcomes that it accepts.
    `compare_bool_bit`: the bit with which COMPARE_OP converts to bool.
    `yield_index`: the default operand of YIELD_VALUE, None if it has no operand.
    `errors_look_back`: look up their handler one code unit early when a called function raised.
    `jumps_start_wide`: the compiler first sizes a jump by the index of its target, and may keep a prefix for that.
    `exit_slots`: slots in which BEFORE_WITH leaves the exit method: 1, or 2 with its self or NULL above it.
    `ex_mapping`: CALL_FUNCTION_EX always pops a mapping, or NULL in its place.
    `async_for_origin`: the operand of END_ASYNC_FOR is the distance back to the loop's END_SEND.
    `iterator_slots`: slots of an iterator in a loop or a SEND: 1, or 2 with an index or NULL above it.
    `generators_iterate`: a generator expression calls iter() itself, before it becomes a generator.
    `modes`: opcode -> the operations that it stands for, by the low bits of its operand; the high bits are theirs.
    `resume_mask`: the bits of RESUME's operand that say where it stands.
    `resume_first`: tools (`sys.monitoring`, a profiler) crash on an exception in a frame that has not run a RESUME.
    """

    version: tuple[int, int]
    null_first: bool
    for_exit: tuple[str, ...] = ()
    compare_shift: int = 0
    compare_bool_bit: int = 0
    yield_index: int | None = None
    errors_look_back: frozenset[str] = frozenset()
    jumps_start_wide: bool = False
    exit_slots: int = 1
    ex_mapping: bool = False
    async_for_origin: bool = False
    iterator_slots: int = 1
    generators_iterate: bool = False
    modes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    resume_mask: int = 3
    resume_first: bool = False


_311: Final = VersionTable(version=(3, 11), null_first=True)
_312: Final = replace(
    _311,
    version=(3, 12),
    for_exit=("END_FOR",),
    compare_shift=4,
    yield_index=2,
    modes={"LOAD_ATTR": ("LOAD_ATTR", "LOAD_METHOD")},
)
_313: Final = replace(
    _312,
    version=(3, 13),
    null_first=False,
    for_exit=("END_FOR", "POP_TOP"),
    compare_shift=5,
    compare_bool_bit=16,
    yield_index=0,
    # These run Python functions inside the interpreter loop; an error in them resumes at the instruction itself, not
    # after it (Python/ceval.c, resume_with_error).
    errors_look_back=frozenset(
        ("CALL", "CALL_FUNCTION_EX", "BINARY_SUBSCR", "LOAD_ATTR", "LOAD_METHOD", "FOR_ITER", "SEND")
    ),
    jumps_start_wide=True,
)
_314: Final = replace(
    _313,
    version=(3, 14),
    for_exit=("END_FOR", "POP_ITER"),
    exit_slots=2,
    ex_mapping=True,
    async_for_origin=True,
)
_315: Final = replace(
    _314,
    version=(3, 15),
    iterator_slots=2,
    generators_iterate=True,
    modes={
        **_314.modes,
        "GET_ITER": ("GET_ITER", "", "", "GET_YIELD_FROM_ITER"),
        "IMPORT_NAME": ("IMPORT_NAME_MAYBE_LAZY", "IMPORT_NAME_LAZY", "IMPORT_NAME", ""),
    },
    resume_mask=7,
    resume_first=True,
)

TABLES: Final = {table.version: table for table in (_311, _312, _313, _314, _315)}

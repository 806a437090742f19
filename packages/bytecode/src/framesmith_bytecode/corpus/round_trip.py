"""The round trip of one code object through `decode` and `encode`: `round_trip_problem`."""

from __future__ import annotations

from itertools import zip_longest
from types import CodeType

from framesmith_bytecode.analyses.verify import problems
from framesmith_bytecode.corpus.compare import difference
from framesmith_bytecode.cpython.exception_table import read_exception_table
from framesmith_bytecode.cpython.opcodes import OPCODES
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.reading.decode import decode
from framesmith_bytecode.text.printer import format_bytecode
from framesmith_bytecode.writing.constants import same_constant
from framesmith_bytecode.writing.encode import encode

_METADATA = (
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_flags", "co_names", "co_varnames",
    "co_filename", "co_name", "co_qualname", "co_firstlineno", "co_freevars", "co_cellvars",
)  # fmt: skip


def round_trip_problem(code: CodeType) -> str | None:
    """The error of decode, encode and a second decode on one code object, or None."""
    first = decode(code)
    wrong = problems(first)
    if wrong:
        return wrong[0]
    again = encode(first)
    for name in _METADATA:
        if getattr(code, name) != getattr(again, name):
            return f"{name}: {getattr(code, name)!r} became {getattr(again, name)!r}"
    if not same_constant(code.co_consts, again.co_consts):
        return "co_consts changed"
    second = decode(again)
    if problem := difference(first, second) or _version_difference(code, again):
        return problem
    return None if format_bytecode(first) == format_bytecode(second) else "the listing changed"


def _version_difference(code: CodeType, again: CodeType) -> str | None:
    """The first difference in bytes: `encode` writes the compiler's code, implied instructions included.

    Not compared is code compiled without columns, in which the compiler fuses instructions before it drops their
    columns, `encode` afterwards.
    """
    positions = list(code.co_positions())
    if all(position[3] is None for position in positions):
        return None
    if not TABLE.jumps_start_wide and _lost_a_prefix(code, again):
        return None
    if code.co_code != again.co_code:
        return f"co_code changed, from {len(code.co_code)} bytes to {len(again.co_code)}"
    if code.co_exceptiontable != again.co_exceptiontable:
        return f"the exception table changed, {_first_difference(code, again)}"
    for unit, (old, new) in enumerate(zip(positions, again.co_positions(), strict=True)):
        if old != new:
            return f"the position of unit {unit} changed, from {old} to {new}"
    return None


def _lost_a_prefix(code: CodeType, again: CodeType) -> bool:
    """Whether only prefixes of jumps are missing: 3.12 first sizes jumps by numbers of labels that no code shows."""
    old, new = ([op for op in one.co_code[::2] if op != OPCODES["EXTENDED_ARG"]] for one in (code, again))
    return old == new and len(again.co_code) < len(code.co_code)


def _first_difference(code: CodeType, again: CodeType) -> str:
    old, new = (read_exception_table(one.co_exceptiontable) for one in (code, again))
    return next((f"from {a} to {b}" for a, b in zip_longest(old, new) if a != b), "in its bytes")

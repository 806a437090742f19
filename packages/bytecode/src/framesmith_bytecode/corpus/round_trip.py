"""The round trip of one code object through `decode` and `encode`: `round_trip_problem`."""

from __future__ import annotations

from itertools import zip_longest
from types import CodeType

from framesmith_bytecode.analyses.verify import problems
from framesmith_bytecode.corpus.compare import difference
from framesmith_bytecode.cpython.exception_table import read_exception_table
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.reading.decode import decode
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
    if not same_constant(code.co_consts, again.co_consts[: len(code.co_consts)]):
        return "co_consts changed"
    return difference(first, decode(again)) or _version_difference(code, again)


def _version_difference(code: CodeType, again: CodeType) -> str | None:
    """The first difference in bytes: `encode` writes the compiler's code, implied instructions included.

    The exception tables are equal byte for byte. Not compared: columns of implied instructions, and code compiled
    without columns, in which the compiler fuses instructions before it drops their columns, `encode` afterwards.
    """
    if all(position[3] is None for position in code.co_positions()):
        return None
    if _operations(code) == _operations(again) and len(again.co_code) < len(code.co_code):
        return None  # the compiler keeps a prefix before a jump that no longer needs it
    if code.co_code != again.co_code:
        return f"co_code changed, from {len(code.co_code)} bytes to {len(again.co_code)}"
    if code.co_exceptiontable != again.co_exceptiontable:
        return f"the exception table changed, {_first_difference(code, again)}"
    old, new = _lines(code), _lines(again)
    for unit in sorted({*old, *new}):
        if old.get(unit) != new.get(unit):
            return f"the line of unit {unit} changed, from {old.get(unit)} to {new.get(unit)}"
    return None


def _operations(code: CodeType) -> list[int]:
    return [op for op in code.co_code[::2] if op != TABLE.opcodes["EXTENDED_ARG"]]


def _first_difference(code: CodeType, again: CodeType) -> str:
    old, new = (read_exception_table(one.co_exceptiontable) for one in (code, again))
    return next((f"from {a} to {b}" for a, b in zip_longest(old, new) if a != b), "in its bytes")


def _lines(code: CodeType) -> dict[int, int | None]:
    return {unit: line for start, end, line in code.co_lines() for unit in range(start // 2, end // 2)}

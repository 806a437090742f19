"""Checks of the types, variables and parameters of a `Bytecode`."""

from __future__ import annotations

from typing import Final

from framesmith_bytecode.analyses.spans import BytecodeError, describe, label_indices
from framesmith_bytecode.model.bytecode import (
    FREE_MARK,
    INT_LIMIT,
    Bytecode,
    Instr,
    Label,
    expect_bytecode,
    plain_name,
    why_not_region,
)

# Types of the fields of a `Bytecode`; those of the last two rows hold names.
_FIELDS: Final[tuple[tuple[type | tuple[type, ...], str, tuple[str, ...]], ...]] = (
    (str, "a str", ("name", "qualname", "filename")),
    (int, "an int of 32 bits", ("firstlineno", "argcount", "posonlyargcount", "kwonlyargcount", "flags")),
    (tuple, "a tuple", ("consts",)),
    (list, "a list", ("instructions", "regions")),
    ((list, tuple), "a list of names", ("varnames", "cellvars", "freevars")),
    (tuple, "a tuple of names", ("names",)),
)
_ITEMS: Final = frozenset((Instr, Label))


def check_types(bytecode: Bytecode) -> None:
    """Raise `BytecodeError` if a field, an item or a region has the wrong type."""
    for kind, wanted, names in _FIELDS:
        for name in names:
            value = getattr(bytecode, name)
            good = isinstance(value, kind)
            if good and kind is int:
                good = -INT_LIMIT <= value < INT_LIMIT
            elif good and wanted.endswith("names"):
                good = all(isinstance(item, str) for item in value)
            if not good:
                raise BytecodeError(f"{bytecode.name}: {name} must be {wanted}, not {value!r:.80}")
    if not _ITEMS.issuperset(map(type, bytecode.instructions)):
        index, item = next((i, item) for i, item in enumerate(bytecode.instructions) if type(item) not in _ITEMS)
        raise BytecodeError(
            f"{bytecode.name}: item {index} is a {type(item).__name__}, neither an Instr nor a Label: {item!r:.80}"
        )
    for key, region in enumerate(bytecode.regions):
        problem = why_not_region(region)
        if problem is not None:
            raise BytecodeError(f"{bytecode.name}: region {key}: {problem}")


def check_header(bytecode: Bytecode) -> None:
    """Raise `BytecodeError` if parameters and variables are inconsistent."""
    counts = (bytecode.argcount, bytecode.posonlyargcount, bytecode.kwonlyargcount)
    too_few = len(bytecode.varnames) < bytecode.parameter_count
    if min(counts) < 0 or too_few or bytecode.posonlyargcount > bytecode.argcount:
        raise BytecodeError(
            f"{bytecode.name}: {bytecode.argcount} positional ({bytecode.posonlyargcount} positional-only) and "
            f"{bytecode.kwonlyargcount} keyword-only parameters, flags {bytecode.flags:#x}, "
            f"but varnames is {bytecode.varnames}"
        )
    for what in ("varnames", "cellvars", "freevars"):
        names = list(map(plain_name, getattr(bytecode, what)))
        if len(set(names)) != len(names):
            raise BytecodeError(f"{bytecode.name}: {what} names a variable twice: {names}")
    taken = {*bytecode.varnames, *bytecode.cellvars}
    for name in bytecode.freevars:
        if name in taken:
            raise BytecodeError(
                f"{bytecode.name}: free variable {name!r} is also a local or a cell; call it {name + FREE_MARK!r}"
            )


def check_readable(bytecode: Bytecode, taker: str) -> dict[Label, int]:
    """The index of every label. Raises `TypeError` or `BytecodeError` where analyses could not read the function."""
    expect_bytecode(bytecode, taker)
    check_types(bytecode)
    labels = label_indices(bytecode)
    for index, item in enumerate(bytecode.instructions):
        if isinstance(item, Instr) and isinstance(item.arg, Label) and item.arg not in labels:
            raise BytecodeError(
                f"{bytecode.name}: {describe(bytecode.instructions, index)}: its label is not in the instructions"
            )
    if not bytecode.instructions:
        raise BytecodeError(f"{bytecode.name}: there are no instructions")
    return labels

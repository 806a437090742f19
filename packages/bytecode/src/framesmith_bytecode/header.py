"""Checks of a `Bytecode`'s variables and parameters, apart from its instructions."""

from __future__ import annotations

from framesmith_bytecode.model import FREE_MARK, Bytecode
from framesmith_bytecode.stack import BytecodeError


def check_header(bytecode: Bytecode) -> None:
    """Raise `BytecodeError` if parameters and variables do not fit together."""
    wanted = bytecode.argcount + bytecode.kwonlyargcount + bool(bytecode.flags & 4) + bool(bytecode.flags & 8)
    counts = (bytecode.argcount, bytecode.posonlyargcount, bytecode.kwonlyargcount)
    if min(counts) < 0 or len(bytecode.argument_names) != wanted or bytecode.posonlyargcount > bytecode.argcount:
        raise BytecodeError(
            f"{bytecode.name}: {bytecode.argcount} positional ({bytecode.posonlyargcount} positional-only) and "
            f"{bytecode.kwonlyargcount} keyword-only parameters, flags {bytecode.flags:#x}, "
            f"but varnames is {bytecode.varnames}"
        )
    for what in ("varnames", "cellvars", "freevars"):
        names = getattr(bytecode, what)
        if len(set(names)) != len(names):
            raise BytecodeError(f"{bytecode.name}: {what} names a variable twice: {names}")
    taken = {*bytecode.varnames, *bytecode.cellvars}
    for name in bytecode.freevars:
        if name in taken:
            raise BytecodeError(
                f"{bytecode.name}: free variable {name!r} is also a local or a cell; call it {name + FREE_MARK!r}"
            )

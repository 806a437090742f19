"""Code objects inside code objects: walking them, and rebuilding them all with an edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType

from framesmith_bytecode.model.bytecode import Bytecode, Instr
from framesmith_bytecode.reading.decode import decode
from framesmith_bytecode.writing.encode import encode


def walk_code(code: CodeType) -> Iterator[CodeType]:
    """The code object and all that are nested in its constants, outer ones first."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from walk_code(constant)


def map_code(code: CodeType, edit: Callable[[Bytecode], Bytecode | None] | None = None) -> CodeType:
    """Decode and encode a code object and all nested ones.

    `edit` may change each `Bytecode` (inner ones first) in place or return another one.
    """
    inner = {id(value): map_code(value, edit) for value in code.co_consts if isinstance(value, CodeType)}
    bytecode = decode(code)
    if inner:
        bytecode.consts = tuple(inner.get(id(value), value) for value in bytecode.consts)
        bytecode.instructions = [
            item.replace(arg=inner[id(item.arg)]) if isinstance(item, Instr) and id(item.arg) in inner else item
            for item in bytecode.instructions
        ]
    if edit is not None:
        bytecode = edit(bytecode) or bytecode
    return encode(bytecode)

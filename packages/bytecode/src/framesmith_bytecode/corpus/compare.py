"""Comparison of two functions, instruction by instruction: `difference`."""

from __future__ import annotations

from framesmith_bytecode.model.bytecode import Bytecode, Instr, Label
from framesmith_bytecode.writing.constants import same_constant

_HEADER = (
    "name", "qualname", "filename", "firstlineno", "argcount", "posonlyargcount", "kwonlyargcount", "flags", "varnames",
    "cellvars", "freevars",
)  # fmt: skip


def _numbered(bytecode: Bytecode) -> tuple[list[Instr], dict[Label, int]]:
    """The instructions without labels, and for each label the number of the next instruction."""
    labels: dict[Label, int] = {}
    instructions: list[Instr] = []
    for item in bytecode.instructions:
        if isinstance(item, Label):
            labels[item] = len(instructions)
        else:
            instructions.append(item)
    return instructions, labels


def _same_operand(left: Instr, right: Instr, lefts: dict[Label, int], rights: dict[Label, int]) -> bool:
    if isinstance(left.arg, Label) and isinstance(right.arg, Label):
        return lefts[left.arg] == rights[right.arg]
    if left.op == "LOAD_CONST":
        return same_constant(left.arg, right.arg)
    return type(left.arg) is type(right.arg) and bool(left.arg == right.arg)


def difference(left: Bytecode, right: Bytecode) -> str | None:
    """A description of the first difference, None if there is none.

    Compared are the header, every operation with its operand (constants by type and bits, jumps by their targets) and
    source range, and the regions. Labels are compared by their indices.
    """
    for field in _HEADER:
        if getattr(left, field) != getattr(right, field):
            return f"{field}: {getattr(left, field)!r} is not {getattr(right, field)!r}"
    instructions, lefts = _numbered(left)
    others, rights = _numbered(right)
    for number, (one, other) in enumerate(zip(instructions, others, strict=False)):
        if one.op != other.op or not _same_operand(one, other, lefts, rights):
            return f"instruction {number}: {one!r} is not {other!r}"
        if one.position != other.position:
            return f"instruction {number}: {one!r} comes from {one.position}, not {other.position}"
    if len(instructions) != len(others):
        return f"{len(instructions)} instructions are not {len(others)}"
    return _region_difference(left, right, lefts, rights)


def _region_difference(
    left: Bytecode, right: Bytecode, lefts: dict[Label, int], rights: dict[Label, int]
) -> str | None:
    sides = [
        [(at[r.start], at[r.end], at[r.handler], r.depth, r.lasti) for r in side.regions]
        for side, at in ((left, lefts), (right, rights))
    ]
    for one, other in zip(*sides, strict=False):
        if one != other:
            return f"region {one} is not {other} (start, end, handler, depth, lasti)"
    return None if len(sides[0]) == len(sides[1]) else f"{len(sides[0])} regions are not {len(sides[1])}"

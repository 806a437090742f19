"""Read, edit, verify and assemble CPython code objects; generate code; continuation functions."""

from framesmith_bytecode.codegen import Codegen, Reconstructable, unique_name
from framesmith_bytecode.model import Bytecode, Instr, Item, Label, Position, Region
from framesmith_bytecode.ops import OPS, CallShape, Op, SuperShape

__all__ = [
    "OPS",
    "Bytecode",
    "CallShape",
    "Codegen",
    "Instr",
    "Item",
    "Label",
    "Op",
    "Position",
    "Reconstructable",
    "Region",
    "SuperShape",
    "unique_name",
]

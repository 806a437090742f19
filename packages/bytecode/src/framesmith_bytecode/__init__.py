"""Read, edit, verify and assemble CPython code objects; generate code; continuation functions."""

from framesmith_bytecode.codegen import Codegen, Reconstructable, unique_name
from framesmith_bytecode.decode import DecodeError, decode
from framesmith_bytecode.encode import encode
from framesmith_bytecode.model import Bytecode, Instr, Item, Label, Position, Region
from framesmith_bytecode.ops import OPS, CallShape, Op, SuperShape
from framesmith_bytecode.stack import BytecodeError, stack_depths

__all__ = [
    "OPS",
    "Bytecode",
    "BytecodeError",
    "CallShape",
    "Codegen",
    "DecodeError",
    "Instr",
    "Item",
    "Label",
    "Op",
    "Position",
    "Reconstructable",
    "Region",
    "SuperShape",
    "decode",
    "encode",
    "stack_depths",
    "unique_name",
]

"""Read, edit, verify and assemble CPython code objects; generate code; continuation functions.

`decode(f.__code__)` gives a `Bytecode`: change its `instructions` (`Instr` and `Label`; `OPS` tells of each operation)
and `encode` it. `Codegen` writes new ones, `split` cuts one in two, `format_bytecode` and `format_python` show one.
`UNBOUND` stands for an unbound local or NULL, `NULL_FIRST` tells where this version puts the NULL of a call.
"""

from framesmith_bytecode.analyses import Analyses
from framesmith_bytecode.cfg import Block, control_flow
from framesmith_bytecode.codegen import Codegen, Reconstructable, unique_name
from framesmith_bytecode.continuation import (
    UNBOUND,
    Continuation,
    ContinuationError,
    Parameter,
    make_continuation,
    why_no_continuation,
)
from framesmith_bytecode.decode import DecodeError, decode
from framesmith_bytecode.encode import encode
from framesmith_bytecode.liveness import Liveness, liveness
from framesmith_bytecode.model import Bytecode, Instr, Item, Label, Position, Region
from framesmith_bytecode.ops import OPS, CallShape, Op, SuperShape
from framesmith_bytecode.printer import format_bytecode
from framesmith_bytecode.rendering import format_python
from framesmith_bytecode.split import Split, split
from framesmith_bytecode.stack import BytecodeError
from framesmith_bytecode.verify import problems, unreachable_handlers, verify
from framesmith_bytecode.versions import NULL_FIRST
from framesmith_bytecode.walk import stack_depths

__all__ = [
    "NULL_FIRST",
    "OPS",
    "UNBOUND",
    "Analyses",
    "Block",
    "Bytecode",
    "BytecodeError",
    "CallShape",
    "Codegen",
    "Continuation",
    "ContinuationError",
    "DecodeError",
    "Instr",
    "Item",
    "Label",
    "Liveness",
    "Op",
    "Parameter",
    "Position",
    "Reconstructable",
    "Region",
    "Split",
    "SuperShape",
    "control_flow",
    "decode",
    "encode",
    "format_bytecode",
    "format_python",
    "liveness",
    "make_continuation",
    "problems",
    "split",
    "stack_depths",
    "unique_name",
    "unreachable_handlers",
    "verify",
    "why_no_continuation",
]

"""Read, edit, verify and assemble CPython code objects; generate code; continuation functions.

`decode(f.__code__)` gives a `Bytecode`: change its `instructions` (`Instr` and `Label`; `OPS` describes the operations)
and `encode` it. `Codegen` generates new ones, `split` makes two functions of one, `format_bytecode` and
`format_python` print one. `UNBOUND` represents an unbound local or NULL; `NULL_FIRST`: the NULL of a call is under the
callable; `EXIT_SLOTS`, `ITERATOR_SLOTS`: slots of the exit of a `with` and of an iterator in a loop.
"""

from framesmith_bytecode.analyses.cfg import Block
from framesmith_bytecode.analyses.liveness import Liveness
from framesmith_bytecode.analyses.spans import BytecodeError
from framesmith_bytecode.analyses.verify import problems, verify
from framesmith_bytecode.codegen.codegen import Codegen, Reconstructable
from framesmith_bytecode.continuations.cached_analyses import Analyses
from framesmith_bytecode.continuations.continuation import (
    UNBOUND,
    Continuation,
    ContinuationError,
    Parameter,
    is_continuation,
    make_continuation,
    resumed_function,
    why_no_continuation,
)
from framesmith_bytecode.continuations.handover import hand_over
from framesmith_bytecode.continuations.split import Split, split
from framesmith_bytecode.cpython.running import EXIT_SLOTS, ITERATOR_SLOTS, NULL_FIRST
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Item, Label, Position, Region
from framesmith_bytecode.model.ops import (
    FUNCTION_PARTS,
    OPS,
    CallShape,
    InterpolationShape,
    Op,
    SuperShape,
    pops,
    pushes,
)
from framesmith_bytecode.reading.decode import decode
from framesmith_bytecode.reading.readers import DecodeError
from framesmith_bytecode.text.printer import format_bytecode
from framesmith_bytecode.text.rendering import format_python
from framesmith_bytecode.writing.encode import encode

__all__ = [
    "EXIT_SLOTS",
    "FUNCTION_PARTS",
    "ITERATOR_SLOTS",
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
    "InterpolationShape",
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
    "decode",
    "encode",
    "format_bytecode",
    "format_python",
    "hand_over",
    "is_continuation",
    "make_continuation",
    "pops",
    "problems",
    "pushes",
    "resumed_function",
    "split",
    "verify",
    "why_no_continuation",
]

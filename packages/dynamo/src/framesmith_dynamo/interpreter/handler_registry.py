"""Registry of instruction handlers: one function per canonical operation, declared in the files of `handlers/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from framesmith_bytecode import OPS
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.registry import register

if TYPE_CHECKING:
    from framesmith_bytecode import Instr

#: (frame, instruction) -> None. The frame is a `frame.Frame`; its `pc` already points at the next instruction.
Handler = Callable[[Any, "Instr"], None]

INSTRUCTION_HANDLERS: dict[str, Handler] = {}

UNKNOWN_INSTRUCTION = register_break(
    "unknown-instruction",
    what="an instruction the tracer has no handler for",
    why="it belongs to a construct that is not traced (class bodies, asynchronous code, ...)",
    hint="move the construct out of the compiled function",
)


def interprets(*ops: str) -> Callable[[Handler], Handler]:
    """Register a handler for canonical operations. Raises ValueError for an unknown one, and for one already taken."""
    if unknown := [op for op in ops if op not in OPS]:
        raise ValueError(f"no canonical operations: {unknown}")
    return register(INSTRUCTION_HANDLERS, *ops)


def unknown_instruction(frame: Any, instr: Instr) -> None:
    """Break the graph at an instruction without a handler."""
    raise GraphBreak(UNKNOWN_INSTRUCTION, instr.op)

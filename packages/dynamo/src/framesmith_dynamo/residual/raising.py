"""Errors raised where a continuation begins: after it has rebuilt the frame, inside its open blocks.

A `with` or `try` block open at a graph break is left by the continuation's own handlers. So an error in place of a
continuation (of the compiler under `strict`, of a graph, the user's Ctrl-C) is raised at its RESUME.
"""

from __future__ import annotations

from types import CodeType

from framesmith_bytecode import Bytecode, Codegen, Instr, Label, encode, is_continuation
from framesmith_dynamo.interpreter.decoded import decoded
from framesmith_frames import Entry


def emit_plain(codegen: Codegen, body: Bytecode, error: str) -> None:
    """Emit a function's own instructions, which begin by raising the error in the local `error`, unless it is None."""
    for item in body.instructions:
        if not _begins(item):
            codegen.extend([item])
            continue
        going_on = Label()
        codegen.load(error)
        codegen.forget(error)  # in the local, the exception would keep the frame alive, and the frame the exception
        codegen.dup()
        codegen.branch(going_on, on="none")
        codegen.raise_()
        codegen.mark(going_on)
        codegen.pop()
    codegen.regions += body.regions


def raising(code: CodeType, error: BaseException) -> Entry | None:
    """Return an Entry that raises `error` in the open blocks of `code`, in place of a call; None if it has none."""
    if not is_continuation(code):
        return None
    body = decoded(code).bytecode
    if not _begins_in_block(body):
        return None
    codegen = Codegen.like(body)
    for item in body.instructions:
        codegen.extend([item])
        if _begins(item):
            codegen.push_callable(lambda: codegen.load_const([error].pop))  # the code must not keep the error alive
            codegen.call(0)
            codegen.raise_()
    codegen.regions += body.regions
    return Entry(lambda arguments, function: True, encode(codegen.bytecode()))


def _begins(item: object) -> bool:
    return isinstance(item, Instr) and item.op == "RESUME" and item.arg == 0


def _begins_in_block(body: Bytecode) -> bool:
    labels = {item: index for index, item in enumerate(body.instructions) if isinstance(item, Label)}
    begin = next((index for index, item in enumerate(body.instructions) if _begins(item)), -1)
    return any(labels[region.start] <= begin < labels[region.end] for region in body.regions)

"""Errors that arise where a frame begins: in a continuation behind what rebuilds the frame, inside its open blocks.

A `with` or `try` block that was open at a graph break is left by the continuation's own handlers. So what is raised in
a continuation's place (by the compiler under `strict`, by a graph, by the user's Ctrl-C) is raised there, at RESUME.
"""

from __future__ import annotations

from types import CodeType

from framesmith_bytecode import Bytecode, Codegen, Instr, Label, encode
from framesmith_dynamo.interpreter.decoded import decoded
from framesmith_dynamo.residual.continuations import is_continuation
from framesmith_frames import Entry


def emit_plain(codegen: Codegen, body: Bytecode, error: str) -> None:
    """Emit a function's own instructions; they begin by raising what the local `error` holds, if it is not None."""
    for item in body.instructions:
        if not _begins(item):
            codegen.extend([item])
            continue
        going_on = Label()
        codegen.load(error)
        codegen.forget(error)  # held there, the exception would keep the frame, and the frame it
        codegen.dup()
        codegen.branch(going_on, on="none")
        codegen.raise_()
        codegen.mark(going_on)
        codegen.pop()
    codegen.regions += body.regions


def raising(code: CodeType, error: BaseException) -> Entry | None:
    """What raises `error` in place of a call that would run `code`, in its open blocks; None if there are none."""
    if not is_continuation(code):
        return None
    body = decoded(code).bytecode
    if not _begins_in_block(body):
        return None
    codegen = Codegen.like(body)
    for item in body.instructions:
        codegen.extend([item])
        if _begins(item):
            codegen.push_callable(lambda: codegen.load_const([error].pop))  # the code is not to hold it afterwards
            codegen.call(0)
            codegen.raise_()
    codegen.regions += body.regions
    return Entry(lambda arguments, function: True, encode(codegen.bytecode()))


def _begins(item: object) -> bool:
    return isinstance(item, Instr) and item.op == "RESUME" and item.arg == 0


def _begins_in_block(body: Bytecode) -> bool:
    places = {item: place for place, item in enumerate(body.instructions) if isinstance(item, Label)}
    begin = next((place for place, item in enumerate(body.instructions) if _begins(item)), -1)
    return any(places[region.start] <= begin < places[region.end] for region in body.regions)

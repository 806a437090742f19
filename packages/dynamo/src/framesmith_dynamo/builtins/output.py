"""Builtins with effects outside the program: they break the graph, so that the effects occur in order."""

from __future__ import annotations

import builtins
import warnings

from framesmith_dynamo.breaks import INTERPRETER_ACCESS, READS_OWN_LOCALS, BreakKind, register_break
from framesmith_dynamo.values.callables import breaking, handles

PRINT = register_break(
    "print",
    what="print() is called",
    why="the text must appear once per call, in order, and may show tensor data",
    hint="print outside the compiled function, or accept two graphs with the print between them",
)
WARN = register_break(
    "warn",
    what="warnings.warn() is called",
    why="its effect depends on warning filters and on the calling code",
    hint="warn outside the compiled function",
)
INPUT_OUTPUT = register_break(
    "input-output",
    what="a builtin reads or writes files or the terminal",
    why="it must happen once per call, in order",
    hint="call it outside the compiled function",
)


def _breaks(kind: BreakKind, *names: str) -> None:
    for name in names:
        handles(getattr(builtins, name))(breaking(kind, name))


_breaks(PRINT, "print")
_breaks(INPUT_OUTPUT, "open", "input")
_breaks(INTERPRETER_ACCESS, "compile", "__import__")
_breaks(READS_OWN_LOCALS, "exec", "eval", "breakpoint")
handles(warnings.warn)(breaking(WARN, "warn"))

"""What the converter tells of frames: graphs, breaks, entries, recompilations, frames left to plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Literal

from torch import fx

from framesmith_bytecode import decode, format_python
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.graph.symbols import SymbolFact
from framesmith_guards import CheckProgram, Location, TraceId

EventKind = Literal[
    "graph", "break", "entry", "recompile", "dynamic", "limit", "skip", "run-once", "assumption", "in-order", "costly",
    "error",
]  # fmt: skip


@dataclass(frozen=True)
class FrameEvent:
    """One thing that happened to a frame of `code`.

    `graph`: a graph was handed to the compiler (`graph`); `break`: it ends early (`broken`); `entry`: compiled code
    was made (`check` and `guards`, its check as Python; `symbols`, what changes from call to call; `residual` and
    `residual_text`, its code; `seconds` taken);
    `recompile`: no entry applied (`detail`: why the nearest did not); `dynamic`: a size or number that has changed is a
    symbol from now on (`detail`: which, and what it was and is), or marks have no effect; `limit`: that was so as often
    as allowed (`detail`: what changed most, and what to do); `skip` and `run-once`: left to plain Python, always or
    this time (`detail`: why); `assumption`: so was a call in which data are not as a compiled graph
    assumes (`detail`: what that is); `in-order`: a graph is not compiled, and runs operation by operation
    (`detail`: why); `costly`: compiling or inlining the code was never worth it, and stops (`detail`: why, and what to
    do); `error`: the tracer or a compiler failed (`error`).

    `trace_id` names the compilation, and the attempt, that it is part of; `location` is the line that it is about.
    """

    kind: EventKind
    code: CodeType
    detail: str = ""
    graph: fx.GraphModule | None = None
    broken: GraphBreak | None = None
    check: CheckProgram | None = None
    symbols: Sequence[SymbolFact] = ()
    residual: CodeType | None = None
    error: BaseException | None = None
    trace_id: TraceId | None = None
    location: Location | None = None
    seconds: float = 0.0

    @property
    def place(self) -> Location:
        """The line to tell the user of: the innermost of their own code's, else where the frame's function begins."""
        code = self.code
        at = self.location or Location(code.co_filename, code.co_firstlineno, code.co_qualname)
        return at.in_user_code

    @property
    def guards(self) -> str:
        """The entry's check as Python text; made when it is asked for."""
        return "" if self.check is None else self.check.text

    @property
    def residual_text(self) -> str:
        """The entry's code in a form that reads like Python (`format_python`); made when it is asked for."""
        return "" if self.residual is None else format_python(decode(self.residual))

    def __str__(self) -> str:
        id = "" if self.trace_id is None else f"[{self.trace_id}] "
        where = f"{self.code.co_qualname} ({self.place.filename}:{self.place.lineno})"
        return f"{id}{self.kind}: {where}" + (f": {self.detail}" if self.detail else "")

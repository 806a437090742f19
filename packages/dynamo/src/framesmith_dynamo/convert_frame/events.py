"""Events of the converter: graphs, breaks, entries, recompilations, frames that run eagerly."""

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
    "refusal", "error",
]  # fmt: skip


@dataclass(frozen=True)
class FrameEvent:
    """An event of a frame of `code`.

    `graph`: a graph was handed to the compiler (`graph`); `break`: a graph ends early (`broken`); `entry`: an entry was
    made (`check` and `guards`, its check as Python; `symbols`, its symbolic sizes and numbers; `residual` and
    `residual_text`, its code; `seconds` taken); `recompile`: no entry applied (`detail`: why the nearest did not);
    `dynamic`: a size or number has become a symbol, or marks have no effect (`detail`); `limit`: the recompile limit is
    reached (`detail`: the guard that failed most often, and the remedy); `skip` and `run-once`: the code, or this call,
    runs eagerly (`detail`: why); `assumption`: a call ran eagerly because an assumption of a compiled graph about data
    does not hold (`detail`); `in-order`: a graph is not compiled and runs operation by operation (`detail`: why);
    `costly`: the code is no longer compiled or inlined because it never paid off (`detail`: why, and the remedy);
    `refusal`: the compiler declined to do something to the graph before (`detail`: what, and why); `error`: the tracer
    or a compiler failed (`error`).

    `trace_id` names the compilation and the attempt; `location` is the line of the program that the event concerns.
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
        """The line to report: the innermost in the user's own code, else the beginning of the frame's function."""
        code = self.code
        at = self.location or Location(code.co_filename, code.co_firstlineno, code.co_qualname)
        return at.in_user_code

    @property
    def guards(self) -> str:
        """The entry's check as Python text, generated on demand."""
        return "" if self.check is None else self.check.text

    @property
    def residual_text(self) -> str:
        """The entry's code in a form that reads like Python (`format_python`), generated on demand."""
        return "" if self.residual is None else format_python(decode(self.residual))

    def __str__(self) -> str:
        id = "" if self.trace_id is None else f"[{self.trace_id}] "
        where = f"{self.code.co_qualname} ({self.place.filename}:{self.place.lineno})"
        return f"{id}{self.kind}: {where}" + (f": {self.detail}" if self.detail else "")

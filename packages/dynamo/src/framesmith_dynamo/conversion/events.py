"""What the converter tells of frames: graphs, breaks, entries, recompilations, frames left to plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Literal

from torch import fx

from framesmith_bytecode import decode, format_python
from framesmith_dynamo.breaks import GraphBreak
from framesmith_guards import CheckProgram

EventKind = Literal["graph", "break", "entry", "recompile", "limit", "skip", "run-once", "error"]


@dataclass(frozen=True)
class FrameEvent:
    """One thing that happened to a frame of `code`.

    `graph`: a graph was handed to the compiler (`graph`); `break`: it ends early (`broken`); `entry`: compiled code
    was made (`check` and `guards`, its check as Python; `residual` and `residual_text`, its code); `recompile`: no
    entry applied (`detail`: why the nearest did not); `limit`: that was so as often as allowed (`detail`: what
    changed most, and what to do); `skip` and `run-once`: left to plain Python, always or this time (`detail`: why);
    `error`: the tracer or a compiler failed (`error`).
    """

    kind: EventKind
    code: CodeType
    detail: str = ""
    graph: fx.GraphModule | None = None
    broken: GraphBreak | None = None
    check: CheckProgram | None = None
    residual: CodeType | None = None
    error: BaseException | None = None
    place: str = field(default="")

    @property
    def guards(self) -> str:
        """The entry's check as Python text; made when it is asked for."""
        return "" if self.check is None else self.check.text

    @property
    def residual_text(self) -> str:
        """The entry's code in a form that reads like Python (`format_python`); made when it is asked for."""
        return "" if self.residual is None else format_python(decode(self.residual))

    def __str__(self) -> str:
        where = f"{self.code.co_qualname} ({self.code.co_filename}:{self.code.co_firstlineno})"
        return f"{self.kind}: {where}" + (f": {self.detail}" if self.detail else "")

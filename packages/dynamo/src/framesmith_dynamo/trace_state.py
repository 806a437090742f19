"""The state shared by all frames of one trace: graph, guards, journal, known objects, and the speculation log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

from framesmith_dynamo.admission.costly_callees import CostlyCallees
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.graph.builder import GraphBuilder, TensorRef
from framesmith_dynamo.graph.symbols import ShapePolicy, Symbols
from framesmith_dynamo.values.base import TraceFacts
from framesmith_guards import GuardsSet
from framesmith_sideeffects import Journal

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Value
    from framesmith_guards import Location, Source


class RestartTrace(Exception):
    """The trace must restart with a fact that is now in the log."""


@dataclass(slots=True)
class SpeculationLog:
    """The findings of failed attempts: the number of the outermost frame's instruction at which the graph must end.

    `called_for_real`, `wide_numbers`, `follows_calls`: see `TraceFacts`. `outside`: the exception handled around the
    call.
    """

    break_at: int | None = None
    reason: GraphBreak | None = None
    called_for_real: set[int] = field(default_factory=set)
    wide_numbers: bool = False
    follows_calls: bool = False
    outside: BaseException | None = field(default_factory=sys.exception)
    #: Whether the program has declared graph breaks errors at the break.
    is_error: bool = False

    def end_at(self, step: int, reason: GraphBreak, is_error: bool = False) -> None:
        """Record that instruction number `step` cannot be traced."""
        self.is_error = is_error
        self.break_at = step
        self.reason = reason


class OpenFrame(Protocol):
    """The contents of an interpreted frame; None is NULL."""

    stack: list[Value | None]
    operands: tuple[Value | None, ...]
    locals: dict[str, Value]
    cells: dict[str, Any]
    result: Value | None
    handled: Value | None

    def location(self) -> Location:
        """The frame's location in the user's program."""

    def may_catch(self) -> bool:
        """Whether code of the frame, other than torch's contexts, may see an exception that the instruction raises."""


@dataclass(slots=True)
class TraceState:
    """The shared state of one attempt to trace a frame.

    `callees` knows the functions that are not worth inlining; `globals` are those of the outermost frame; `handled` is
    the exception being handled; `depth` counts nested inlined calls; `run(frame, error=None)` interprets a child frame
    to its next stop, raising `error` there first if given (passed in, so that frames do not import the interpreter).

    `policy` decides which sizes and numbers are symbols.

    `running` are the open frames, outermost first; `suspended_generators` those with cleanup to run when they are
    closed; `unwound_frames` those that an exception has left, which its traceback keeps alive (see
    `interpreter.abandoned`).
    """

    code: CodeType
    globals: dict[str, Any]
    log: SpeculationLog
    callees: CostlyCallees
    run: Callable[..., Value]
    policy: ShapePolicy
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    symbols: Symbols = field(init=False)
    journal: Journal[Value] = field(default_factory=Journal)
    guards: GuardsSet = field(default_factory=GuardsSet)
    facts: TraceFacts = field(default_factory=TraceFacts)
    by_source: dict[Source, Value] = field(default_factory=dict)
    by_identity: dict[int, tuple[object, Value, Source]] = field(default_factory=dict)
    tensors: dict[TensorRef, Value] = field(default_factory=dict)
    constants: dict[int, Value] = field(default_factory=dict)
    #: The calls of nested compile regions that later calls may repeat, by the id of the function's value.
    regions: dict[int, list[Any]] = field(default_factory=dict)
    handled: Value | None = None
    depth: int = 0
    running: list[OpenFrame] = field(default_factory=list)
    suspended_generators: list[Value] = field(default_factory=list)
    unwound_frames: list[tuple[Value, OpenFrame]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.symbols = Symbols(self.builder.fake_mode, self.policy)
        self.facts.called_for_real = self.log.called_for_real
        self.facts.wide_numbers = self.log.wide_numbers
        self.facts.follows_calls = self.log.follows_calls

    def location(self) -> Location | None:
        """The trace's location in the user's program, in the innermost open frame."""
        return self.running[-1].location() if self.running else None

    def is_empty(self) -> bool:
        """Whether nothing was computed or changed yet."""
        return self.builder.operations == 0 and self.journal.is_empty() and self.builder.state.grad_after() is None

    def finished(self) -> None:
        """Undo the trace's changes of torch's state."""
        self.builder.state.restore()

    def release(self) -> None:
        """Drop all objects; the trace is over."""
        self.journal = Journal()
        for ref in self.builder.refs.values():
            ref.real = None
        self.builder.refs.clear()
        self.facts = TraceFacts()
        for known in (self.by_source, self.by_identity, self.tensors, self.constants, self.regions):
            known.clear()
        for met in (self.running, self.suspended_generators, self.unwound_frames):
            met.clear()

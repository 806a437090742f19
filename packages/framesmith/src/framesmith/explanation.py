"""`explain`: the report of one call, run under a session of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from framesmith.backends import WITHOUT_AOT
from framesmith.backward import captured_for
from framesmith.config import CompileConfig
from framesmith.reports.steps import StepReport, step_lines
from framesmith.session import Session, install_error_handler
from framesmith.targets.kinds import check_target, name_of
from framesmith.targets.wrappers import callback_of, compile_callable, original_of
from framesmith_autograd_compiler import Capture
from framesmith_dynamo import FrameEvent
from framesmith_guards.kinds.shapes import ShapeExpr


@dataclass
class Explanation:
    """Events of compiling one call, and reports of its graphs; `str()` is the report.

    `steps`: for each graph that was compiled, its ATen graphs (forward, backward, update), the seconds of each stage,
    and the memory that is saved for backward. `captured`: the backward passes that were captured as wholes, where
    `compile_backward` or `compiled_autograd=True` is at work: what of them is compiled, and what is not, and why.
    """

    name: str
    events: list[FrameEvent] = field(default_factory=list)
    steps: list[StepReport] = field(default_factory=list)
    captured: Capture | None = None

    def of_kind(self, kind: str) -> list[FrameEvent]:
        """The events of one kind, in order."""
        return [event for event in self.events if event.kind == kind]

    @property
    def graph_count(self) -> int:
        """Graphs compiled."""
        return len(self.of_kind("graph"))

    @property
    def break_count(self) -> int:
        """Graph breaks, each once, whichever and however many frames met it."""
        return len(self._met())

    def _met(self) -> dict[object, list[FrameEvent]]:
        """The events of each break: one for each time that it was met."""
        met: dict[object, list[FrameEvent]] = {}
        for event in self.events:
            if event.broken is not None:
                met.setdefault(event.broken.site, []).append(event)
        return met

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.graph_count} graph(s), {self.break_count} break(s)"]
        met = self._met()
        for event in self.events:
            events = [event] if event.broken is None else met[event.broken.site]
            if event is events[0]:
                lines += ["", *describe(event), *also_met(events)]
        for step in self.steps:
            lines += ["", *step_lines(step, self._capture_seconds(step))]
        if self.captured is not None:
            lines += ["", str(self.captured)]
        return "\n".join(lines)

    def _capture_seconds(self, step: StepReport) -> float | None:
        """The seconds of a frame's compilation but for those of its graphs; None for other graphs."""
        whole = [event.seconds for event in self.of_kind("entry") if event.trace_id == step.trace_id]
        of_graphs = sum(one.seconds for one in self.steps if one.trace_id == step.trace_id)
        return max(whole[0] - of_graphs, 0.0) if whole else None


def also_met(events: Sequence[FrameEvent]) -> list[str]:
    """Return lines for the second and later times that a break was met: count, functions, other details."""
    first, *others = events
    if not others:
        return []
    names = dict.fromkeys(event.code.co_qualname for event in others)
    details = dict.fromkeys(event.detail for event in others if event.detail != first.detail)
    return [f"    met {len(events)} times, also in: {', '.join(names)}", *(f"    also: {detail}" for detail in details)]


def describe(event: FrameEvent) -> list[str]:
    """One event as lines of the report."""
    lines = [str(event)]
    if event.graph is not None:
        lines.append(indent(event.graph.code))
    if event.broken is not None:
        lines.append(indent(event.broken.explain()))
    if event.symbols:
        facts = [f"    {fact}" for fact in event.symbols]
        lines += ["    # dynamic shapes and symbolic scalars", *facts, *guards_on_symbols(event)]
    if event.guards:
        lines.append(indent(event.guards))
    if event.residual_text:
        lines += ["", "    # the code that runs when the guards hold", indent(event.residual_text)]
    return lines


def guards_on_symbols(event: FrameEvent) -> list[str]:
    """Return the guards on symbols that the program needed, each with the user's line."""
    guards = event.check.guards if event.check is not None else ()
    conditions = [guard for guard in guards if isinstance(guard.expected, ShapeExpr) and guard.location is not None]
    lines = [f"    {guard.expected}, by {guard.location.in_user_code}" for guard in conditions if guard.location]
    return ["    # guards on them", *lines] if lines else []


def indent(text: str) -> str:
    """Text moved right by four columns, without blank lines around it."""
    return "\n".join(f"    {line}" for line in text.strip("\n").splitlines())


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Run `fn(*args, **kwargs)` once, compiled for itself, and return the report.

    A compiled `fn` keeps its options and its backend, whose refusals ("no fused attention for softmax") are events;
    another is compiled for "eager", which has none. Side effects happen once. Raises the errors of the call.
    """
    target, compiler = check_target(original_of(fn)), callback_of(fn)
    explanation = Explanation(name_of(target))
    install_error_handler()
    config = compiler.config if isinstance(compiler, Session) else CompileConfig(backend=WITHOUT_AOT)
    session = Session(config, explanation.events.append, steps=explanation.steps.append)
    with captured_for(config, explanation.steps.append) as explanation.captured:
        compile_callable(target, session)(*args, **kwargs)
    return explanation

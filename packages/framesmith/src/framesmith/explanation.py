"""`explain`: one call run under a recording session, told as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from framesmith.config import CompileConfig
from framesmith.session import Session, install_error_handler
from framesmith.targets.kinds import check_target, name_of
from framesmith.targets.wrappers import callback_of, compile_callable, original_of
from framesmith_dynamo import FrameEvent
from framesmith_guards.kinds.shapes import ShapeExpr


@dataclass
class Explanation:
    """What compiling a call did: `str()` of it is the report."""

    name: str
    events: list[FrameEvent] = field(default_factory=list)

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
        return "\n".join(lines)


def also_met(events: Sequence[FrameEvent]) -> list[str]:
    """How often a break was met, if more than once, and where and with what details else than the first time."""
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
        lines += ["    # what changes from call to call", *(f"    {fact}" for fact in event.symbols), *relied_on(event)]
    if event.guards:
        lines.append(indent(event.guards))
    if event.residual_text:
        lines += ["", "    # the code that runs when the check passes", indent(event.residual_text)]
    return lines


def relied_on(event: FrameEvent) -> list[str]:
    """What the program came to rely on of what changes, with the line that does."""
    guards = event.check.guards if event.check is not None else ()
    conditions = [guard for guard in guards if isinstance(guard.expected, ShapeExpr) and guard.location is not None]
    lines = [f"    {guard.expected}, by {guard.location.in_user_code}" for guard in conditions if guard.location]
    return ["    # of which the code relies on", *lines] if lines else []


def indent(text: str) -> str:
    """Text moved right by four columns, without blank lines around it."""
    return "\n".join(f"    {line}" for line in text.strip("\n").splitlines())


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Run `fn(*args, **kwargs)` once, compiled afresh for the "eager" backend, and tell what happened.

    `fn` may be compiled already: then its options hold. Its side effects happen, once. Raises what the call raises.
    """
    target, compiler = check_target(original_of(fn)), callback_of(fn)
    explanation = Explanation(name_of(target))
    install_error_handler()
    config = compiler.config if isinstance(compiler, Session) else CompileConfig()
    session = Session(replace(config, backend="eager", mode="default", options={}), observe=explanation.events.append)
    compile_callable(target, session)(*args, **kwargs)
    return explanation

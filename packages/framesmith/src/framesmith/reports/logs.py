"""Logs: one logger a topic under `framesmith.*`, switched on by `set_logs` or the environment variable FRAMESMITH_LOGS.

Lower packages log to `logging.getLogger("framesmith.<topic>")`; the list of topics is here. Each record has the
compilation and the user's line (`compile_id`, `place`); a topic that is off makes no record.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Final

from torch import fx

from framesmith.choices import check_choice
from framesmith.reports.failures import FramesmithWarning
from framesmith.reports.steps import StepReport, memory_lines, sized
from framesmith_aten.graphs.step_parts import CALLS, calls_by_part, part_of
from framesmith_dynamo import FrameEvent
from framesmith_guards import CompileContext, Location, current_location

#: topic -> content of its lines, and of its DEBUG lines
TOPICS: Final[Mapping[str, str]] = {
    "frames": "the outcome of each frame: compiled, skipped, run once, failed; DEBUG: its residual code",
    "graphs": "each graph captured, and its size; DEBUG: its code",
    "breaks": "each graph break, once, with its hint; DEBUG: the user's stack, and each frame that meets it",
    "guards": "the number of guards of each entry; DEBUG: each guard, with the line that needs it",
    "recompiles": "the guard that failed, expected and found values, and sizes that become dynamic",
    "aot": "each ATen graph, its role, and its size by part of the training step; DEBUG: its code",
    "memory": "bytes saved for backward by each graph; DEBUG: each tensor saved or recomputed, its line, and why",
    "passes": "passes of a backend: changes and times; DEBUG: the text after each that changed something",
    "kernels": "the number of kernels of a graph; DEBUG: their code",
    "plan": "steps of a graph's launcher, CUDA graph capture, autotuned choices; DEBUG: each step",
    "torch": "names that this release of torch lacks, and features lost by that",
    "perf": "compile time of each frame, stage and part of a training step; functions skipped as they never paid",
}
#: The word for every topic at once.
ALL: Final = "all"
VARIABLE: Final = "FRAMESMITH_LOGS"
ROOT: Final = logging.getLogger("framesmith")
FORMAT: Final = "%(name)s %(levelname)s [%(compile_id)s] %(place)s: %(message)s"
#: kind of event -> topic
TOPIC_OF: Final[Mapping[str, str]] = {
    "graph": "graphs",
    "break": "breaks",
    "entry": "frames",
    "skip": "frames",
    "run-once": "frames",
    "assumption": "frames",
    "in-order": "graphs",
    "refusal": "graphs",
    "costly": "perf",
    "error": "frames",
    "recompile": "recompiles",
    "dynamic": "recompiles",
    "limit": "recompiles",
}


def logger(topic: str) -> logging.Logger:
    """The logger of a topic."""
    return logging.getLogger(f"framesmith.{topic}")


class _Place(logging.Filter):
    """Notes on each record which compilation it is about, and which of the user's lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "compile_id"):
            record.compile_id = CompileContext.current_trace_id() or "-"
        if not hasattr(record, "place"):
            record.place = _short(current_location())
        return True


def _short(location: Location | None) -> str:
    if location is None:
        return "-"
    at = location.in_user_code
    return f"{at.filename}:{at.lineno}"


_HANDLER: Final = logging.StreamHandler()
_HANDLER.setFormatter(logging.Formatter(FORMAT))
for _topic in TOPICS:
    logger(_topic).addFilter(_Place())


def set_logs(topics: str | None = None, /, **levels: bool | int | str) -> None:
    """Choose what is logged, to standard error; what was chosen before is forgotten. Without arguments: nothing.

    topics: as in FRAMESMITH_LOGS: names separated by commas; `+name` is more (DEBUG), `-name` only errors; `all` means
    every topic. levels: a level by topic: True (INFO), False (off), or a level of `logging`, a number or its name.
    Raises ValueError, with the nearest choice, for a topic that does not exist; TypeError for a level that is none.
    """
    chosen = {**parse(topics or ""), **_by_name(levels)}
    for topic in TOPICS:
        logger(topic).setLevel(chosen.get(topic, logging.NOTSET))
    ROOT.removeHandler(_HANDLER)
    if chosen:
        ROOT.addHandler(_HANDLER)
    ROOT.propagate = not chosen


def parse(text: str) -> dict[str, int]:
    """The level of each topic that `text` names; of two words about a topic, the later counts. Raises ValueError."""
    chosen: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        level = {"+": logging.DEBUG, "-": logging.ERROR}.get(word[0], logging.INFO)
        name = check_choice("log topic", word.lstrip("+-"), [*TOPICS, ALL])
        chosen.update(dict.fromkeys(TOPICS if name == ALL else [name], level))
    return chosen


def _by_name(levels: Mapping[str, bool | int | str]) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for given, level in levels.items():
        name = check_choice("log topic", given, [*TOPICS, ALL])
        chosen.update(dict.fromkeys(TOPICS if name == ALL else [name], _level(level)))
    return chosen


def _level(level: object) -> int:
    if isinstance(level, bool):
        return logging.INFO if level else logging.ERROR
    known = logging.getLevelNamesMapping()
    if isinstance(level, str) and level.upper() in known:
        return known[level.upper()]
    if isinstance(level, int):
        return level
    raise TypeError(f"a log level is True, False, a number or a name such as 'DEBUG'; got {level!r}")


def set_logs_from_environment() -> None:
    """Set the levels of FRAMESMITH_LOGS; warn of an unknown topic, and log nothing then."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    try:
        set_logs(text)
    except ValueError as error:
        warnings.warn(f"{VARIABLE}={text!r} is ignored: {error}", FramesmithWarning, stacklevel=2)


# Records of graphs and frames


def log_aten_graph(gm: fx.GraphModule, role: str) -> None:
    """Log an ATen graph that goes to a backend."""
    about = logger("aot")
    if about.isEnabledFor(logging.INFO):
        about.info("%s graph of %d nodes, %s", role, len(gm.graph.nodes), sized(gm.graph))
        if about.isEnabledFor(logging.DEBUG):
            about.debug("%s", by_part(gm.graph))
            for name, body in gm.named_modules():
                if name and isinstance(body, fx.GraphModule):
                    about.debug("%s: %s", name, body.graph)


def by_part(graph: fx.Graph) -> str:
    """Return the text of a graph; where it holds several parts of a training step, each call with its part."""
    if len(calls_by_part(graph)) < 2:
        return str(graph)
    lines = ["graph():"]
    for node in graph.nodes:
        part = f"  # {part_of(node)}" if node.op in CALLS else ""
        lines.append(f"    {node.format_node()}{part}")
    return "\n".join(lines)


def logs_steps() -> bool:
    """Whether a topic is on for which the parts of a training step are found."""
    return any(logger(topic).isEnabledFor(logging.INFO) for topic in ("aot", "memory", "perf"))


def log_step(report: StepReport) -> None:
    """Log the seconds of a graph's stages, and what it saves for its backward pass."""
    logger("perf").info("compiled a graph in %.3f s: %s", report.seconds, "; ".join(report.stages()))
    about = logger("memory")
    if about.isEnabledFor(logging.INFO):
        for memory in report.memory():
            first, *rest = memory_lines(memory)
            about.info("%s", first)
            for line in rest:
                about.debug("%s", line)


def log_event(event: FrameEvent, *, again: bool = False) -> None:
    """Log what happened to a frame, under its topic. `again`: a break that was logged before, in another frame."""
    about = logger(TOPIC_OF[event.kind])
    level = logging.DEBUG if again else logging.INFO
    if about.isEnabledFor(level):
        hint = "" if event.broken is None else f" (what to do: {event.broken.kind.hint})"
        detail = f": {event.detail}{hint}" if event.detail else ""
        _log(about, level, event, "%s: %s%s", event.kind, event.code.co_qualname, detail)
        if about.isEnabledFor(logging.DEBUG):
            _log_more(about, event)
    perf = logger("perf")
    if event.kind == "entry" and perf.isEnabledFor(logging.INFO):
        _log(perf, logging.INFO, event, "%s: compiled in %.3f s", event.code.co_qualname, event.seconds)
    guards = logger("guards")
    if event.check is not None and guards.isEnabledFor(logging.INFO):
        _log(guards, logging.INFO, event, "%s: %d guards", event.code.co_qualname, len(event.check.guards))
        if guards.isEnabledFor(logging.DEBUG):
            for guard in event.check.guards:
                at = guard.location
                _log(guards, logging.DEBUG, event, "%s%s", guard, "" if at is None else f"  # {at.in_user_code}")


def _log_more(about: logging.Logger, event: FrameEvent) -> None:
    if event.graph is not None:
        _log(about, logging.DEBUG, event, "%s", event.graph.code.strip())
    if event.broken is not None and event.location is not None:
        _log(about, logging.DEBUG, event, "%s", event.location.stack_trace.rstrip())
    if event.residual is not None:
        _log(about, logging.DEBUG, event, "%s", event.residual)


def _log(about: logging.Logger, level: int, event: FrameEvent, message: str, *args: object) -> None:
    where = {"compile_id": event.trace_id or "-", "place": _short(event.place)}
    about.log(level, message, *args, extra=where)

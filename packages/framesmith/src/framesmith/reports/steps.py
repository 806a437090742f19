"""Reports of the graphs of a training step: forward, backward and update, the seconds of each, memory saved between."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from torch import fx

from framesmith_aot import Memory, Traced
from framesmith_aten.contract import Role
from framesmith_aten.graphs.step_parts import CALLS, PARTS, calls_by_part, part_of
from framesmith_aten.meta import StepPart
from framesmith_guards import Location

#: In a source: a part of a module, and a local variable.
_PART: Final = re.compile(r"\.__dict__\['_(?:modules|parameters|buffers)'\]\['(\w+)'\]")
_LOCAL: Final = re.compile(r"^L\['(\w+)'\]")


@dataclass(frozen=True)
class AtenGraph:
    """An ATen graph that a backend compiled, and the seconds that this took."""

    role: Role
    graph: fx.Graph
    seconds: float

    def calls(self, part: StepPart) -> list[fx.Node]:
        """The calls of one part of the step: an inference graph may hold a backward pass and an update."""
        return [node for node in self.graph.nodes if node.op in CALLS and part_of(node) == part]

    def __str__(self) -> str:
        return f"{self.role} graph: {sized(self.graph)}"


def sized(graph: fx.Graph) -> str:
    """Return the number of calls of a graph, of each part where there are others than forward ones."""
    counts = calls_by_part(graph)
    if {*counts} <= {"forward"}:
        return counted(counts.total(), "call")
    return ", ".join(f"{counts[part]} {part}" for part in PARTS if counts[part]) + " calls"


def counted(number: int, what: str) -> str:
    """Return a number of things: "1 call", "2 calls"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


@dataclass
class StepReport:
    """The report of one captured graph: ATen graphs, what is saved between them, the seconds of each stage.

    `trace_id` names the compilation; `location` is the first line of the graph; `sources` are its inputs as the program
    writes them, by the names of placeholders. `seconds`: of all but the capture.
    """

    trace_id: object
    location: Location | None
    sources: Mapping[str, str]
    graphs: list[AtenGraph] = field(default_factory=list)
    traces: list[Traced] = field(default_factory=list)
    seconds: float = 0.0

    def note_trace(self, traced: Traced) -> None:
        """Add a trace; a captured graph with an optimizer's step before the forward pass has two."""
        self.traces.append(replace(traced, names=[readable(self.sources.get(name, name)) for name in traced.names]))

    @contextmanager
    def timing(self, role: Role, graph: fx.Graph) -> Iterator[None]:
        """Measure the compilation of an ATen graph inside."""
        begun = time.perf_counter()
        yield
        self.graphs.append(AtenGraph(role, graph, time.perf_counter() - begun))

    def memory(self) -> list[Memory]:
        """Return what each trace saves and recomputes: of those that have a backward pass."""
        found = [traced.memory() for traced in self.traces]
        return [one for one in found if one.saved or one.recomputed]

    def __str__(self) -> str:
        return "\n".join(step_lines(self))

    def stages(self) -> list[str]:
        """Return the stages with their seconds: the trace of each part, the partition, each graph's kernels."""
        parts = {part: sum(one.trace_seconds.get(part, 0.0) for one in self.traces) for part in PARTS}
        shown = ", ".join(f"{part} {seconds:.3f}" for part, seconds in parts.items() if seconds)
        found = [f"trace {sum(parts.values()):.3f} s ({shown})"]
        partition = sum(one.partition_seconds for one in self.traces)
        found += [f"partition {partition:.3f} s"] if partition else []
        return found + [f"{one.role} kernels {one.seconds:.3f} s" for one in self.graphs]


def readable(source: str) -> str:
    """Return a source with a module's parts as attributes, as a program writes them: `model.0.weight`."""
    return _LOCAL.sub(r"\1", _PART.sub(r".\1", source))


def memory_lines(memory: Memory) -> list[str]:
    """Return the listing of what is saved and recomputed."""
    saved, recomputed = memory.saved, memory.recomputed
    total = f"{counted(len(saved), 'tensor')}, {memory.bytes:,} B"
    lines = [f"saved for backward: {total}; {memory.added_bytes:,} B of it for that alone"]
    for one in saved:
        operator = f" by {one.value.operator}" if one.value.operator else ""
        lines.append(f"  {one.value}{operator}{_at(one.value.line)}")
        lines.append(f"    {one.kind}: {one.why}")
        for reader in one.readers:
            through = f", through {', '.join(reader.through)} again" if reader.through else ""
            lines.append(f"    for {reader.operator}{_derivative(reader.line)}{through}")
    if recomputed:
        size = sum(one.value.bytes for one in recomputed)
        lines.append(f"recomputed in backward: {counted(len(recomputed), 'tensor')}, {size:,} B")
    return lines + [f"  {one.value} by {one.value.operator}{_at(one.value.line)}: {one.why}" for one in recomputed]


def _at(line: Location | None) -> str:
    return "" if line is None else f", {short(line)}"


def _derivative(line: Location | None) -> str:
    return "" if line is None else f", derivative of {short(line)}"


def short(line: Location) -> str:
    """Return a line as file name, number and text."""
    text = line.line
    return f"{line.filename.rpartition('/')[2]}:{line.lineno}" + (f" `{text}`" if text else "")


def step_lines(report: StepReport, capture: float | None = None) -> Sequence[str]:
    """Return a report as lines of text; `capture`: the seconds that the capture took, if known."""
    where = (
        ""
        if report.location is None
        else f" ({report.location.in_user_code.filename}:{report.location.in_user_code.lineno})"
    )
    stages = ([] if capture is None else [f"capture {capture:.3f} s"]) + report.stages()
    lines = [f"[{report.trace_id}] compiled{where}", f"    {'; '.join(stages)}"]
    lines += [f"    {graph}" for graph in report.graphs]
    for memory in report.memory():
        lines += [f"    {line}" for line in memory_lines(memory)]
    return lines

"""Buffers that live within one run, side by side in one piece of memory that is asked for once.

Two share bytes when one is last read before the other is first written. The largest are placed first, each at the
lowest offset where no buffer lies that lives at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.program import Layout
from framesmith_backends.schedule.steps import Allocate, CallStep, Run, Step

#: Each buffer starts at a multiple of so many bytes, as ATen's do.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Span:
    """A buffer of so many bytes, from the item that writes it to the last one that reads it."""

    name: str
    size: int
    first: int
    last: int

    def meets(self, other: Span) -> bool:
        return self.first <= other.last and other.first <= self.last


def with_arenas(steps: Sequence[Step], outputs: set[str]) -> list[Step]:
    """The steps with what lives within one run in that run's arena, `name.arena`."""
    seen = Counter(name for step in steps for name in _names(step))
    layouts = {step.name: step.layout for step in steps if isinstance(step, Allocate)}
    found: list[Step] = []
    gone: set[str] = set()
    for step in steps:
        if isinstance(step, Run):
            inner = [b for b in step.buffers if b in layouts and seen[b] == 1 and b not in outputs]
            spans = [span for span in (_span(step, name, layouts[name]) for name in inner) if span is not None]
            if spans:
                offsets, size = placed(spans)
                arena = f"{step.entry}.arena"
                gone |= offsets.keys()
                rest = tuple(b for b in step.buffers if b not in offsets)
                step = replace(step, buffers=(*rest, arena), inner=tuple(offsets.items()))
                found.append(Allocate(arena, Layout((size,), (1,), "u8")))
        found.append(step)
    return [step for step in found if not (isinstance(step, Allocate) and step.name in gone)]


def _names(step: Step) -> tuple[str, ...]:
    if isinstance(step, Run):
        return step.buffers
    return (*step.call.needs, step.call.name) if isinstance(step, CallStep) else ()


def _span(run: Run, name: str, layout: Layout) -> Span | None:
    """The life of a buffer in a run, in numbers of items; None for one of unknown size."""
    if not isinstance(layout.numel, int) or layout.device != "cpu":
        return None
    used = [at for at, item in enumerate(run.items) if any(param.name == name for param in item.params)]
    size = -(-layout.numel * DTYPES[layout.dtype].itemsize // ALIGNMENT) * ALIGNMENT
    return Span(name, size, used[0], used[-1])


def placed(spans: Sequence[Span]) -> tuple[dict[str, int], int]:
    """Offsets in bytes by name, and the size of the whole."""
    offsets: dict[str, int] = {}
    done: list[Span] = []
    for span in sorted(spans, key=lambda s: (-s.size, s.first)):
        at = 0
        for other in sorted((s for s in done if s.meets(span)), key=lambda s: offsets[s.name]):
            if offsets[other.name] - at >= span.size:
                break
            at = max(at, offsets[other.name] + other.size)
        offsets[span.name] = at
        done.append(span)
    return {s.name: offsets[s.name] for s in spans}, max(offsets[s.name] + s.size for s in spans)

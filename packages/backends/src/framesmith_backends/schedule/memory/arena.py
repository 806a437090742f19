"""Buffers that live within one run, side by side in one allocation.

Two share bytes when one is last read before the other is first written. The largest are placed first, each at the
lowest offset where no buffer lies that lives at the same time. Buffers of symbolic sizes, whose offsets are known
only at run time, take dead ones of as many elements instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.program import Layout
from framesmith_backends.ir.symbolic.size import Size
from framesmith_backends.schedule.memory.in_place import Overwriting
from framesmith_backends.schedule.steps import Allocate, Inner, Run, Step
from framesmith_backends.target import Target

#: Each buffer starts at a multiple of so many bytes, as ATen's do.
BUFFER_ALIGNMENT = 64


SizeT = TypeVar("SizeT", int, Size)

#: By the entries of runs, for each item its position in order of execution: one for those that run side by side.
Positions = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Span(Generic[SizeT]):
    """A buffer of so many bytes, from the item that writes it to the last one that reads it."""

    name: str
    size: SizeT
    first: int
    last: int

    def meets(self, other: Span[SizeT]) -> bool:
        return self.first <= other.last and other.first <= self.last


def with_arenas(steps: Sequence[Step], outputs: set[str], target: Target, positions: Positions) -> list[Step]:
    """Return the steps with buffers of one run in that run's arena, `name.arena`, or in a dead buffer's memory.

    What lives on may take the place of what dies in the run that makes it: `Allocate` says so behind the run.

    Items of runs without `positions` run one after another. A kernel writes over what it reads where it visits points
    in order. On a GPU a buffer takes the place of one of its own type: what launches may be given tensors, which have
    one.
    """
    over = Overwriting(steps, outputs)
    layouts = over.layouts
    found: list[Step] = []
    gone: set[str] = set()
    for at, step in enumerate(steps):
        if isinstance(step, Run):
            inner = [name for name in step.buffers if name in layouts and over.seen[name] == 1 and name not in outputs]
            taken_over, heirs = dict[str, str](), dict[str, str]()
            if target.in_order:
                step, taken_over, heirs = over.within(step, at)
            gone.update(taken_over, heirs)
            inner = [name for name in inner if name not in taken_over and name not in {*heirs, *heirs.values()}]
            order = positions.get(step.entry, range(len(step.items)))
            spans, symbolic = _spans(step, {name: layouts[name] for name in inner}, order)
            dtypes = {span.name: layouts[span.name].dtype for span in symbolic} if target.on_gpu else {}
            step = replace(step, shared=tuple(taken(symbolic, dtypes).items()))
            if spans:
                offsets, size = placed(spans)
                arena = f"{step.entry}.arena"
                own = tuple(Inner(span.name, offsets[span.name], span.size) for span in spans)
                step = replace(step, buffers=(*step.buffers, arena), inner=own)
                found.append(Allocate(arena, Layout((size,), (1,), "u8", layouts[spans[0].name].device)))
            away = {one.name for one in step.inner}.union(name for name, _ in step.shared)
            step = replace(step, buffers=tuple(name for name in step.buffers if name not in away))
            gone |= away
            found += [step, *(Allocate(name, over.known[place], place) for name, place in heirs.items())]
        else:
            found.append(step)
    return [step for step in found if not (isinstance(step, Allocate) and step.reuse is None and step.name in gone)]


def _spans(
    run: Run, layouts: Mapping[str, Layout], positions: Sequence[int]
) -> tuple[list[Span[int]], list[Span[Size]]]:
    """Return the lives of buffers in a run, as positions of items: those of static sizes, and the others."""
    used: dict[str, list[int]] = {}
    for at, item in zip(positions, run.items, strict=True):
        for param in item.params:
            used.setdefault(param.name, []).append(at)
    known: list[Span[int]] = []
    symbolic: list[Span[Size]] = []
    for name, layout in layouts.items():
        first, last = min(used[name]), max(used[name])
        size = layout.numel * DTYPES[layout.dtype].itemsize
        if isinstance(size, int):
            known.append(Span(name, -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT, first, last))
        else:
            symbolic.append(Span(name, size, first, last))
    return known, symbolic


def taken(spans: Iterable[Span[Size]], dtypes: Mapping[str, str]) -> dict[str, str]:
    """Buffers that lie where another of their size and dtype, if that counts, lay, which is dead: their names, and that
    of the first one there.
    """
    found: dict[str, str] = {}
    last: dict[object, dict[str, int]] = {}  # the first buffer of each place, and when the place is free
    for span in sorted(spans, key=lambda span: span.first):
        free = last.setdefault((span.size, dtypes.get(span.name)), {})
        place = next((name for name, end in free.items() if end < span.first), span.name)
        free[place] = span.last
        if place != span.name:
            found[span.name] = place
    return found


def placed(spans: Sequence[Span[int]]) -> tuple[dict[str, int], int]:
    """Offsets in bytes by name, and the size of the whole."""
    offsets: dict[str, int] = {}
    done: list[Span[int]] = []
    for span in sorted(spans, key=lambda s: (-s.size, s.first)):
        at = 0
        for other in sorted((s for s in done if s.meets(span)), key=lambda s: offsets[s.name]):
            if offsets[other.name] - at >= span.size:
                break
            at = max(at, offsets[other.name] + other.size)
        offsets[span.name] = at
        done.append(span)
    return {s.name: offsets[s.name] for s in spans}, max(offsets[s.name] + s.size for s in spans)

"""Buffers that live within one run, side by side in one allocation.

Two share bytes when one is last read before the other is first written; a result of the run, too, which is there from
its beginning on, lends its bytes until it is written. The largest are placed first, each at the lowest offset where no
buffer lies that lives at the same time. Buffers of symbolic sizes, whose offsets are known
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
from framesmith_backends.schedule.memory.reuse import layout_bytes
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
            results = [name for name in step.buffers if name in layouts and over.first[name] == at]
            results = [name for name in results if target.in_order and name not in inner]
            order = positions.get(step.entry, range(len(step.items)))
            step, arena = _with_arena(step, inner, results, layouts, order, target)
            found += [] if arena is None else [arena]
            gone.update({one.name for one in step.inner}, (name for name, _ in step.shared))
            found += [step, *(Allocate(name, over.known[place], place) for name, place in heirs.items())]
        else:
            found.append(step)
    return [step for step in found if not (isinstance(step, Allocate) and step.reuse is None and step.name in gone)]


def _with_arena(
    run: Run,
    inner: Sequence[str],
    results: Sequence[str],
    layouts: Mapping[str, Layout],
    order: Sequence[int],
    target: Target,
) -> tuple[Run, Allocate | None]:
    """Return the run with its `inner` buffers in `results` that lend their bytes, or in its arena, and that."""
    spans, symbolic = _spans(run, {name: layouts[name] for name in inner}, order)
    dtypes = {span.name: layouts[span.name].dtype for span in symbolic} if target.on_gpu else {}
    made, _ = _spans(run, {name: layouts[name] for name in results}, order)
    lent = lent_bytes(spans, [one for one in made if layout_bytes(layouts[one.name]) == one.size])
    spans = [span for span in spans if span.name not in lent]
    shared = {**taken(symbolic, dtypes), **lent}
    away = {*shared, *(span.name for span in spans)}
    buffers = tuple(name for name in run.buffers if name not in away)
    run = replace(run, buffers=buffers, shared=tuple(shared.items()))
    if not spans:
        return run, None
    offsets, size = placed(spans)
    arena = f"{run.entry}.arena"
    own = tuple(Inner(span.name, offsets[span.name], span.size) for span in spans)
    layout = Layout((size,), (1,), "u8", layouts[spans[0].name].device)
    return replace(run, buffers=(*buffers, arena), inner=own), Allocate(arena, layout)


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


def lent_bytes(spans: Iterable[Span[int]], results: Sequence[Span[int]]) -> dict[str, str]:
    """Buffers that lie where a result will be, and die before it is written: their names, and the results'."""
    found: dict[str, str] = {}
    lying: dict[str, list[Span[int]]] = {}
    for span in sorted(spans, key=lambda span: -span.size):
        hosts = [one for one in results if span.size <= one.size and span.last < one.first]
        hosts = [one for one in hosts if not any(map(span.meets, lying.get(one.name, ())))]
        if hosts:
            host = min(hosts, key=lambda one: one.size).name
            found[span.name] = host
            lying.setdefault(host, []).append(span)
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

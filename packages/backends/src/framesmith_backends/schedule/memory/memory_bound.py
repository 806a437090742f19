"""Memory-bounded splitting: long runs in parts, where a whole one would be the peak of a launch list.

A run is handed all its buffers at once: what it writes is there from its first kernel on, what it reads for the last
time until it ends. Where the memory alive comes to exceed what running item by item would need, a run is cut into as
few parts as do not; each costs a microsecond or two. Results of kernels that are to be written over what these read
count as that. Symbolic sizes count by their hints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from framesmith_aten.operators import is_view
from framesmith_backends.ir.program import Layout
from framesmith_backends.schedule.memory.in_place import Overwriting
from framesmith_backends.schedule.memory.reuse import Life, bytes_alive, bytes_made, layout_bytes
from framesmith_backends.schedule.steps import Allocate, CallStep, CopyStep, Run, Step, made_by, run_of, used_by

#: The excess of a peak over the least one that is not worth a split: a share of it, and a sixteenth of it within these
#: bounds, in bytes.
SHARE, TRIFLE, MOST_TRIFLE = 0.005, 3 << 15, 1 << 18


def split_runs_by_memory(
    steps: Sequence[Step], inputs: Mapping[str, Layout | None], kept: set[str], overwriting: bool
) -> list[Step]:
    """Return the steps with runs in parts; those in `kept` are needed to the end. Runs have no arenas yet.

    `overwriting`: kernels write over what they read for the last time (see `Overwriting`).
    """
    lives, ticks = _lives(steps, inputs, kept, _overwritten(steps, kept) if overwriting else {})
    least = max(bytes_alive(lives, 0, ticks), default=0)
    allowed = int(least * (1 + SHARE)) + min(max(TRIFLE, least // 16), MOST_TRIFLE)
    found: list[Step] = []
    waiting: dict[str, Allocate] = {}  # made when the first part that uses it begins
    start = 0
    for step in steps:
        if isinstance(step, Allocate):
            waiting[step.name] = step
            continue
        if isinstance(step, Run):
            parts = _parts(lives, start, start + len(step.items), allowed)
            for number, (first, end) in enumerate(parts):
                entry = step.entry if len(parts) == 1 else f"{step.entry}_{number}"
                part = step if len(parts) == 1 else run_of(entry, step.items[first - start : end - start])
                found += [waiting.pop(name) for name in part.buffers if name in waiting]
                found.append(part)
        else:
            found += [waiting.pop(name) for name in used_by(step) if name in waiting]
            found.append(step)
        start += len(_uses(step))
    return [*found, *waiting.values()]


def _uses(step: Step) -> list[list[str]]:
    """Return the names used at each tick of a step: at items of a run, or at a call."""
    if isinstance(step, Run):
        return [[param.name for param in item.params] for item in step.items]
    return [[*used_by(step), *made_by(step)]] if isinstance(step, (CallStep, CopyStep)) else []


def _overwritten(steps: Sequence[Step], kept: set[str]) -> dict[str, str]:
    """Return the results that kernels write over other buffers, each with the first buffer at its place."""
    over, found = Overwriting(steps, kept), dict[str, str]()
    for at, step in enumerate(steps):
        if isinstance(step, Run):
            _, inner, heirs = over.within(step, at)
            found |= {name: found.get(place, place) for name, place in (*inner.items(), *heirs.items())}
    return found


def _lives(
    steps: Sequence[Step], inputs: Mapping[str, Layout | None], kept: set[str], over: Mapping[str, str]
) -> tuple[list[Life], int]:
    """Return the lives of buffers, and the number of ticks. A view keeps its base alive, a result what it is over."""
    owner = dict(over)
    lives = {name: Life(0 if layout is None else layout_bytes(layout), 0, 0) for name, layout in inputs.items()}
    made = {step.name: layout_bytes(step.layout) for step in steps if isinstance(step, Allocate)}
    tick = 0
    for step in steps:
        if isinstance(step, CallStep):
            needs = step.call.needs
            if needs and (step.view is not None or is_view(step.call.node.target)):
                owner[step.call.name] = owner.get(needs[0], needs[0])
            else:
                made[step.call.name] = bytes_made(step)
        for names in _uses(step):
            for root in (owner.get(name, name) for name in names):
                lives.setdefault(root, Life(made.get(root, 0), tick, tick)).last = tick
            tick += 1
    for name in kept:
        if (root := owner.get(name, name)) in lives:
            lives[root].last = tick
    return [life for life in lives.values() if life.size], tick


def _peak(lives: Iterable[Life], start: int, end: int) -> int:
    """Return the peak in bytes of one run of these ticks: only buffers within it are not alive all the time."""
    inner = [life for life in lives if life.first >= start and life.last < end]
    whole = sum(life.size for life in lives if life.first < end and life.last >= start)
    return whole - sum(life.size for life in inner) + max(bytes_alive(inner, start, end), default=0)


def _parts(lives: Sequence[Life], start: int, end: int, allowed: int) -> list[tuple[int, int]]:
    """Return the ticks of a run in parts whose peaks are allowed, as far as those of single ticks are."""
    near = [life for life in lives if life.first < end and life.last >= start]
    found: list[tuple[int, int]] = []
    while start < end:
        fits, fails = start + 1, end + 1
        trial = end
        while fails - fits > 1:
            if _peak(near, start, trial) <= allowed:
                fits = trial
            else:
                fails = trial
            trial = (fits + fails) // 2
        found.append((start, fits))
        start = fits
    return found

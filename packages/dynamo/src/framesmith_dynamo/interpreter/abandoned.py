"""Suspended generators that are dropped: CPython closes one with its last reference, running `finally` and `with`
blocks.

A trace counts no references; reachability from the open frames and the journal is computed instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.interpreter.generator import GeneratorValue
from framesmith_dynamo.python_behaviour import DROPS_FIRST_SLOT_FIRST
from framesmith_dynamo.values.base import TracedRaise, Value
from framesmith_sideeffects.liveness import cyclic_components, reachable

if TYPE_CHECKING:
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.trace_state import OpenFrame, TraceState

ABANDONED_GENERATOR = register_break(
    "abandoned-generator",
    what="a suspended generator is dropped, and it is unknown when or how Python closes it",
    why="it is in a reference cycle, several are dropped at once, or closing it raises",
    hint="call close() on the generator, or exhaust it",
)


def close_abandoned(frame: Frame) -> None:
    """Close the suspended generators that became unreachable by an instruction of `frame`."""
    state = frame.state
    frame.operands = ()
    while dead := [made for made in suspended_generators(state) if not (made.running or _is_held(state, made))]:
        outer = [made for made in dead if not any(_reaches(state, other, made) for other in dead)]
        if len(dead) != 1 and len(outer) != 1:
            raise GraphBreak(ABANDONED_GENERATOR, ", ".join(made.describe() for made in dead))
        first = (outer or dead)[0]
        if _in_cycle(state, first):
            raise GraphBreak(ABANDONED_GENERATOR, f"{first.describe()}, in a reference cycle")
        _close(frame, first)


def suspended_generators(state: TraceState) -> Iterator[GeneratorValue]:
    """Return the generators suspended in a block, or at a delegate with cleanup."""
    return (made for made in state.suspended_generators if isinstance(made, GeneratorValue))


def _close(frame: Frame, generator: GeneratorValue) -> None:
    frame.state.suspended_generators.remove(generator)
    try:
        generator.close(frame)
    except TracedRaise as raised:
        raise GraphBreak(ABANDONED_GENERATOR, f"{raised.value.describe()} while it is closed") from raised


def drop_variables(frame: Frame) -> None:
    """Drop the variables of a frame that has returned, in this Python's order."""
    code = frame.code.bytecode
    slots = (*code.varnames, *code.cellvars, *code.freevars)
    for name in slots if DROPS_FIRST_SLOT_FIRST else reversed(slots):
        dict.pop(frame.locals, name, None)
        frame.cells.pop(name, None)
        close_abandoned(frame)


def unwind(frame: Frame, error: Value) -> None:
    """An exception leaves a frame: drop its stack; its variables live as long as the exception."""
    frame.result = error
    while frame.stack:
        frame.stack.pop()
        close_abandoned(frame)
    frame.state.unwound_frames.append((error, frame))


def _is_held(state: TraceState, generator: GeneratorValue) -> bool:
    """Whether a generator is reachable. The path found last time is tried first."""
    path = generator.path
    if path and path[-1] is generator and _is_valid(state, path):
        return True
    generator.path = _path_to(state, generator)
    return bool(generator.path)


def _is_valid(state: TraceState, path: list[Value]) -> bool:
    if not any(root is path[0] for root in _roots(state)):
        return False
    return all(any(part is inner for part in _parts(state, outer)) for outer, inner in itertools.pairwise(path))


def _path_to(state: TraceState, wanted: Value) -> list[Value]:
    """Return a path of values from a root, held by a frame or an older object, to `wanted`; empty if there is none."""
    parents: dict[int, Value | None] = {}
    pending: list[tuple[Value | None, Value]] = [(None, root) for root in _roots(state)]
    for parent, value in pending:
        if id(value) in parents:
            continue
        parents[id(value)] = parent
        if value is wanted:
            path = [value]
            while (above := parents[id(path[-1])]) is not None:
                path.append(above)
            return path[::-1]
        pending += [(value, part) for part in _parts(state, value)]
    return []


def _roots(state: TraceState) -> Iterator[Value]:
    for frame in state.running:
        yield from _held_by(frame)
        yield from (value for value in (*frame.operands, frame.result) if value is not None)
    if state.handled is not None:
        yield state.handled
    yield from state.facts.working
    yield from state.journal.escaping()  # type: ignore[misc]


def _held_by(frame: OpenFrame) -> Iterator[Value]:
    """Return the values that a frame holds: stack, variables, and the exception that it handles."""
    yield from (value for value in (*frame.stack, frame.handled) if value is not None)
    yield from frame.locals.values()
    yield from frame.cells.values()


def _parts(state: TraceState, value: Value) -> Iterator[Value]:
    yield from state.journal.held_values(value)  # type: ignore[misc]
    if isinstance(value, GeneratorValue) and value.frame is not None:
        yield from _held_by(value.frame)
    for error, frame in state.unwound_frames:
        if error is value:
            yield from _held_by(frame)


def _reached(state: TraceState, values: Iterable[Value]) -> dict[int, Value]:
    return reachable(values, lambda value: _parts(state, value))  # type: ignore[arg-type, return-value]


def _reaches(state: TraceState, value: Value, wanted: Value) -> bool:
    return id(wanted) in _reached(state, _parts(state, value))


def _in_cycle(state: TraceState, generator: GeneratorValue) -> bool:
    """Whether the generator, or a new object that leads to it, is in a reference cycle."""
    circles = cyclic_components([generator, *state.journal.made()], lambda value: _parts(state, value))  # type: ignore
    return any(id(generator) in _reached(state, circle) for circle in circles)  # type: ignore[arg-type]

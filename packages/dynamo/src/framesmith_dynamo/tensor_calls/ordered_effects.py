"""Calls after the graph, among the program's other side effects: operators with effects, calls left to Python.

A graph that fails on its data has called none of them, so its frame can begin again eagerly; each runs once, in the
program's order. See docs/design/frontend/0006-failed-graphs-leave-no-effects.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from framesmith_aten.layouts import storage_id
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_frames import without_hook
from framesmith_guards.contexts import ambient
from framesmith_sideeffects import MutationRefused

if TYPE_CHECKING:
    from framesmith_aten.meta import Effects
    from framesmith_dynamo.graph.builder import GraphBuilder
    from framesmith_dynamo.trace_state import TraceState
    from framesmith_guards.contexts.ambient import Ambient

EFFECT_READS = register_break(
    "effect-reads-changed",
    what="after a call of an operator with effects, a tensor is changed in place that it reads, or that is an input",
    why="the operator is called after the graph: it would see the change, which would be made even if it raises",
    hint="change a clone, or make the change before the operator is called",
)
EFFECT_BETWEEN = register_break(
    "effect-between-changes",
    what="an object changes before and after a call of an operator with effects",
    why="its changes are made at once, and the operator may raise, or look at it",
    hint="make one change, before or after the operator is called",
)
EFFECT_CAUGHT = register_break(
    "effect-caught",
    what="an operator with effects is called where the program may see its error",
    why="it is called after the graph, where no block of the program is open; in the graph, it is called again if it "
    "raises",
    hint="call it outside of the try or with statement",
)
EFFECT_ORDER = register_break(
    "effect-order",
    what="a custom operator has to be a part of the graph (in a body, or since it returns a value), after a call of "
    "one with effects",
    why="the one with effects is called after the graph, and the other may have effects that it does not declare",
    hint="call it before the other one, or end the graph between them",
)


def placed_after_graph(
    tr: Tracer,
    state: TraceState,
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: object,
    effects: Effects,
) -> bool:
    """Note a call of an operator with effects for after the graph, or return False: it becomes a node.

    Breaks where the node of a custom operator, which may have an effect that it does not declare, would come before an
    operator that is called after the graph.
    """
    if effects.external and result is None and _after_graph(tr, state, target, args, kwargs):
        return True
    if tr.facts.has_ordered_effects:
        raise GraphBreak(EFFECT_ORDER, getattr(target, "__name__", str(target)))
    return False


def _after_graph(tr: Tracer, state: TraceState, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Note a call of an operator that returns nothing for after the graph; False where it has to be a node.

    So it is in bodies, and for arguments that may change until then. Breaks where the program may catch its error.
    """
    given = [*args, *kwargs.values()]
    if _is_in_body(tr, state) or not all(map(_is_fixed, given)):
        return False
    if _may_be_caught(state):
        raise GraphBreak(EFFECT_CAUGHT, getattr(target, "__name__", str(target)))
    modes = ambient.read() if state.builder.state.changes else None
    try:
        tr.journal.record_ordered_call(_called_with(target, len(args), tuple(kwargs), modes), *map(_as_it_is, given))
    except MutationRefused:
        return False
    _note_reads(tr, given)
    tr.facts.has_ordered_effects = True
    return True


def left_to_python(
    tr: Tracer,
    state: TraceState,
    function: Callable[..., object],
    args: Sequence[Value],
    kwargs: Mapping[str, Value],
    changed: Sequence[Value],
) -> bool:
    """Note a call of the program's for after the graph; see `Tracer.leave_call`."""
    if tr.facts.follows_calls or _is_in_body(tr, state) or _may_be_caught(state):
        return False
    given = [*args, *kwargs.values()]
    call = without_hook(_called_with(function, len(args), tuple(kwargs), None))
    try:
        tr.journal.record_changing_call(call, *map(_as_it_is, given), changed=changed)
    except MutationRefused:
        return False
    _note_reads(tr, given)
    return True


def _is_in_body(tr: Tracer, state: TraceState) -> bool:
    """Whether the trace is in a body that may be called otherwise than once by the graph."""
    body, builder = tr.facts.body, state.builder
    in_function = body.level or body.functions or body.reentrant
    return bool(in_function) or builder.checkpoint is not None or builder.is_in_region


def _may_be_caught(state: TraceState) -> bool:
    """Whether the program may catch an error of the running instruction, or handles one."""
    return any(one.may_catch() for one in state.running) or state.handled is not None


def _note_reads(tr: Tracer, given: Sequence[Any]) -> None:
    tr.facts.read_after_graph |= {storage_id(one.fake) for one in given if isinstance(one, TensorValue)}


def writes_too_early(tr: Tracer, builder: GraphBuilder, written: Sequence[torch.Tensor]) -> bool:
    """Whether a call writes to memory that a call after the graph reads: an operator with effects, also any input's."""
    read = tr.facts.read_after_graph
    if not written or not (read or tr.facts.has_ordered_effects):
        return False
    if tr.facts.has_ordered_effects:
        read = read | {storage_id(ref.fake) for ref in builder.inputs if ref.fake.layout is torch.strided}
    return any(storage_id(one) in read for one in written if one.layout is torch.strided)


def _is_fixed(value: Any) -> bool:
    """Whether an argument is a tensor, or a constant."""
    if isinstance(value, TensorValue):
        return value.fake.layout is torch.strided
    return isinstance(value, Value) and value.can_be_constant()


def _as_it_is(value: Value) -> Value:
    """Return a value that stands for the same tensor even if the program's becomes another one."""
    return TensorValue(value.ref, cls=value.cls, source=value.source) if isinstance(value, TensorValue) else value


def _in_modes(modes: Ambient, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Call a function in the modes of another place. Weights that autocast casts for it are forgotten."""
    try:
        with ambient.preserved():
            ambient.write(modes)
            function(*args, **kwargs)
    finally:
        if modes.any_autocast:
            torch.clear_autocast_cache()


@functools.cache
def _called_with(target: Any, count: int, names: tuple[str, ...], modes: Ambient | None) -> Callable[..., None]:
    """Return the call of an operator with `count` arguments by position, and others by name, in the modes if any."""
    if not names and modes is None:
        return target  # type: ignore[no-any-return]
    function = target if modes is None else functools.partial(_in_modes, modes, target)

    @functools.wraps(target)
    def call(*given: Any) -> None:
        function(*given[:count], **dict(zip(names, given[count:], strict=True)))

    return call

"""Guards that objects which were distinct when something was mutated, or keyed by them, stay distinct."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from framesmith_dynamo.residual.rerun import transaction
from framesmith_dynamo.values.operations import IDENTITY_KEYS
from framesmith_guards import Guard

if TYPE_CHECKING:
    from framesmith_dynamo.graph.builder import FinishedGraph
    from framesmith_dynamo.trace_state import TraceState
    from framesmith_guards import Source


def alias_guards(state: TraceState) -> Iterator[Guard]:
    """NOT_ALIASED guards for the trace's mutations: of tensors in the graph, and of Python objects in the journal."""
    used = [ref for ref in state.builder.inputs if ref.source is not None]
    if len(used) > 1 and any(ref.is_changed() for ref in used):
        sources = [ref.source for ref in used if ref.source is not None]
        yield Guard(sources[0], "NOT_ALIASED", tuple(sources[1:]))
    keys: dict[type, list[Source]] = {}
    for value in state.memo.get(IDENTITY_KEYS, {}).values():
        keys.setdefault(value.python_type(), []).append(value.source)
    for first, *others_keyed in keys.values():
        if others_keyed:
            yield Guard(first, "NOT_ALIASED", tuple(others_keyed))
    for cls, mutated, others in _mutated_objects(state):
        del cls
        for source in mutated:
            rest = tuple(other for other in others if other is not source)
            if rest:
                yield Guard(source, "NOT_ALIASED", rest)


def _mutated_objects(state: TraceState) -> Iterator[tuple[type, list[Source], list[Source]]]:
    """(type, sources of mutated objects, sources of all objects of the type) for each type with a mutated object."""
    by_type: dict[type, list[tuple[bool, Source]]] = {}
    for obj, value, source in state.by_identity.values():
        if not issubclass(type(obj), torch.Tensor):
            mutated = value.mutation is not None and state.journal.is_mutated(value)
            by_type.setdefault(type(obj), []).append((mutated, source))
    for cls, rows in by_type.items():
        mutated_sources = [source for mutated, source in rows if mutated]
        if mutated_sources:
            yield cls, mutated_sources, [source for _, source in rows]


def safe_from_overlap(graph: FinishedGraph, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled graph, made safe for calls whose inputs share memory.

    A compiler may reorder an in-place operation and a read of another input. So, when the graph changes inputs, each
    call looks whether memory is shared; if so the graph runs as it is, operation by operation. Parameters and buffers
    are not compared with each other.
    """
    changed = graph.changed
    if not changed or len(graph.inputs) < 2:
        return compiled
    lasting = all(graph.inputs[position].is_parameter_or_buffer for position in changed)
    others = [
        position
        for position, item in enumerate(graph.inputs)
        if position not in changed and not (lasting and item.is_parameter_or_buffer)
    ]
    return OverlapChecked(compiled, transaction(graph, graph.module.forward), changed, others)


class OverlapChecked:
    """Calls `compiled`; or `plain`, when a changed input shares its storage with another, or with one of `others`."""

    __slots__ = ("changed", "compiled", "others", "plain")

    def __init__(
        self, compiled: Callable[..., Any], plain: Callable[..., Any], changed: Sequence[int], others: Sequence[int]
    ) -> None:
        self.compiled = compiled
        self.plain = plain
        self.changed = changed
        self.others = others

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """The graph's outputs."""
        written = [inputs[position].untyped_storage().data_ptr() for position in self.changed]
        places = set(written)
        empty = written.count(0)  # tensors without elements have no place, and share none
        places.discard(0)
        shared = len(places) < len(written) - empty
        if not shared:
            shared = any(inputs[position].untyped_storage().data_ptr() in places for position in self.others)
        return self.plain(*inputs) if shared else self.compiled(*inputs)

"""Guards that objects which were distinct when something was mutated, or keyed by them, stay distinct."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from framesmith_dynamo.values.operations import IDENTITY_KEYS
from framesmith_guards import Guard

if TYPE_CHECKING:
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

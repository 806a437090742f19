"""Guards that objects which were distinct when something was mutated, or keyed by them, stay so, and memory apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import torch

from framesmith_dynamo.values.holders import instance_dict, is_settled
from framesmith_guards import Guard, InstanceDictSource, all_apart, no_overlap

if TYPE_CHECKING:
    from framesmith_dynamo.graph.builder import TensorRef
    from framesmith_dynamo.trace_state import TraceState
    from framesmith_guards import Source

#: Changed inputs up to which each is compared with the others on its own; more are all sorted, once.
FEW: Final = 4


def alias_guards(state: TraceState) -> Iterator[Guard]:
    """NOT_ALIASED guards for the trace's mutations: of tensors in the graph, and of Python objects in the journal."""
    used = [ref for ref in state.builder.inputs if ref.source is not None]
    if len(used) > 1 and any(ref.is_changed() for ref in used):
        sources = [ref.source for ref in used if ref.source is not None]
        yield Guard(sources[0], "NOT_ALIASED", tuple(sources[1:]))
    yield from memory_guards(used)
    keys: dict[type, list[Source]] = {}
    for value in state.memo.identity_keys.values():
        assert value.source is not None
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
    by_type: dict[type, dict[int, tuple[bool, Source]]] = {}
    for obj, value, source in state.by_identity.values():
        if issubclass(type(obj), torch.Tensor) or is_settled(source):
            continue
        mutated = value.mutation is not None and state.journal.is_mutated(value)
        by_type.setdefault(type(obj), {}).setdefault(id(obj), (mutated, source))
        entries = instance_dict(obj) if mutated or not issubclass(type(obj), torch.nn.Module) else None
        if entries is not None:
            by_type.setdefault(dict, {})[id(entries)] = (mutated, InstanceDictSource(source))
    for cls, rows in by_type.items():
        mutated_sources = [source for mutated, source in rows.values() if mutated]
        if mutated_sources:
            yield cls, mutated_sources, [source for _, source in rows.values()]


def memory_guards(refs: Sequence[TensorRef]) -> Iterator[Guard]:
    """Guards that no input of the graph comes to share memory with one that the graph changes.

    None where that is so already: such a graph is not compiled, and right whatever else is shared.
    """
    used = [ref for ref in refs if ref.real is not None and ref.fake.layout is torch.strided]
    changed = [ref for ref in used if ref.is_changed()]
    if not changed or len(used) < 2 or share_memory(refs):
        return
    sources = {ref: ref.source for ref in used if ref.source is not None}
    if len(changed) > FEW and all_apart(*(ref.real for ref in used)):
        first, *rest = sources.values()
        yield Guard(first, "ALL_APART", tuple(rest))
        return
    for ref in changed:
        others = tuple(source for other, source in sources.items() if other is not ref)
        yield Guard(sources[ref], "NO_OVERLAP", others)


def share_memory(refs: Sequence[TensorRef]) -> bool:
    """Whether an input of the graph now shares memory with one that the graph changes.

    A compiler may reorder an in-place operation and a read of another input.
    """
    used = [ref for ref in refs if ref.real is not None and ref.fake.layout is torch.strided]
    return any(
        not no_overlap(ref.real, *(other.real for other in used if other is not ref))
        for ref in used
        if ref.is_changed()
    )

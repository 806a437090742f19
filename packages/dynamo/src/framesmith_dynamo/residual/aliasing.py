"""Guards on aliasing: objects that were distinct when one was mutated or used as a key; memory of mutated inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import torch

from framesmith_dynamo.residual.shared_memory import sharing_guards, sharing_of
from framesmith_dynamo.values.lookup.libraries import is_entry, is_in_library, is_settled
from framesmith_guards import Guard, InstanceDictSource, all_disjoint

if TYPE_CHECKING:
    from framesmith_dynamo.graph.builder import TensorRef
    from framesmith_dynamo.trace_state import TraceState
    from framesmith_dynamo.values.base import Value
    from framesmith_guards import Source

#: Mutated inputs up to which each is compared with the others separately; more are sorted once.
FEW: Final = 4


def alias_guards(state: TraceState) -> Iterator[Guard]:
    """Return NOT_ALIASED guards for the trace's mutations of tensors and of Python objects."""
    used = [ref for ref in state.builder.inputs if ref.source is not None]
    if len(used) > 1 and any(ref.is_mutated() for ref in used):
        sources = [ref.source for ref in used if ref.source is not None]
        yield Guard(sources[0], "NOT_ALIASED", tuple(sources[1:]))
    yield from memory_guards(used)
    yield from _tensor_guards(state)
    keys: dict[type, list[Source]] = {}
    for value in state.facts.identity_keys.values():
        assert value.source is not None
        keys.setdefault(value.python_type(), []).append(value.source)
    for first, *others_keyed in keys.values():
        if others_keyed:
            yield Guard(first, "NOT_ALIASED", tuple(others_keyed))
    for mutated, others in (*_mutated_objects(state), *_mutated_dictionaries(state)):
        for source in mutated:
            rest = tuple(other for other in others if other is not source)
            if rest:
                yield Guard(source, "NOT_ALIASED", rest)


def _tensor_guards(state: TraceState) -> Iterator[Guard]:
    """Return a guard that tensors are distinct objects, where one gets attributes or the engine runs."""
    objects = state.by_identity.values()
    found = [(value, source) for obj, value, source in objects if issubclass(type(obj), torch.Tensor)]
    if len(found) > 1 and (state.facts.runs_engine or any(_is_mutated(state, value) for value, _ in found)):
        first, *others = [source for _, source in found]
        yield Guard(first, "NOT_ALIASED", tuple(others))


#: (sources of mutated objects, sources of all objects that may alias one of them)
AliasCandidates = tuple[list["Source"], list["Source"]]


def _is_mutated(state: TraceState, value: Value) -> bool:
    return value.mutation is not None and state.journal.is_mutated(value)


def _mutated_objects(state: TraceState) -> Iterator[AliasCandidates]:
    """Return the objects of one type, for each type with a mutated object."""
    by_type: dict[type, list[tuple[bool, Source]]] = {}
    for obj, value, source in state.by_identity.values():
        if not issubclass(type(obj), torch.Tensor) and not is_settled(source):
            by_type.setdefault(type(obj), []).append((_is_mutated(state, value), source))
    for rows in by_type.values():
        mutated = [source for changed, source in rows if changed]
        if mutated:
            yield mutated, [source for _, source in rows]


def _mutated_dictionaries(state: TraceState) -> Iterator[AliasCandidates]:
    """Return the dicts found at sources of their own, and the `__dict__`s of objects: one may alias the other.

    Dicts that a library keeps in its modules and classes are left out, as are the registries of an `nn.Module` and,
    unless the module changes, its `__dict__`.
    """
    found: dict[bool, list[Source]] = {True: [], False: []}
    for obj, value, source in state.by_identity.values():
        if type(obj) is dict and id(obj) not in state.facts.instance_dicts and not _is_registry(source):
            found[_is_mutated(state, value)].append(source)
    held: dict[bool, list[Source]] = {True: [], False: []}
    for owner in state.facts.instance_dicts.values():
        mutated = _is_mutated(state, owner)
        if owner.source is None or is_in_library(owner.source):
            continue
        if mutated or not issubclass(owner.python_type(), torch.nn.Module):
            held[mutated].append(InstanceDictSource(owner.source))
    if held[True]:
        yield held[True], [*held[True], *held[False], *found[True], *found[False]]
    if found[True]:
        yield found[True], held[False]


#: Names of the registries of every module.
PARTS_OF_MODULES: Final = frozenset(vars(torch.nn.Module()))


def _is_registry(source: Source) -> bool:
    return is_in_library(source) or (is_entry(source) and source.key in PARTS_OF_MODULES)


def memory_guards(refs: Sequence[TensorRef]) -> Iterator[Guard]:
    """Return guards that no input shares memory with one that the graph changes.

    Where inputs share memory already, the guards are those of `shared_memory`; there are none for a graph that runs
    operation by operation.
    """
    used = [ref for ref in refs if ref.real is not None and ref.fake.layout is torch.strided]
    changed = [ref for ref in used if ref.is_mutated()]
    if not changed or len(used) < 2:
        return
    sharing = sharing_of(refs)
    if sharing is not None:
        yield from sharing_guards(refs, sharing)
        return
    sources = {ref: ref.source for ref in used if ref.source is not None}
    if len(changed) > FEW and all_disjoint(*(ref.real for ref in used)):
        first, *rest = sources.values()
        yield Guard(first, "ALL_DISJOINT", tuple(rest))
        return
    for ref in changed:
        others = tuple(source for other, source in sources.items() if other is not ref)
        yield Guard(sources[ref], "NO_OVERLAP", others)

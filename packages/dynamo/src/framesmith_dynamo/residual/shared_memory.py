"""Graphs with a mutated input that shares memory with another input: compiled over the memory, not over the inputs.

Note [Shared memory]: a compiler may reorder a write to one input and a read of another, since it assumes that inputs do
not overlap. So overlapping inputs become views, taken in the graph, of one input that spans them all (a *synthetic
base*); a write to one view then appears in the others by the rules within graphs. Guards check that the inputs lie in
the memory as before. Where no base is possible, the graph runs operation by operation, which is right for any layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from framesmith_aten.contract import Runner
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.layouts import share_storage, storage_id
from framesmith_aten.meta import EXAMPLE
from framesmith_aten.symbolic import is_symbolic
from framesmith_dynamo.graph.builder import state_of
from framesmith_dynamo.graph.finished import FinishedGraph, GraphInput
from framesmith_guards import Guard, TensorPropertySource, all_disjoint, no_overlap
from framesmith_guards.values.tensors import PLAIN_TYPES

if TYPE_CHECKING:
    from framesmith_dynamo.graph.builder import TensorRef


#: Elements read and written that no input shows: a constant, and a factor for each element that one does show.
SMALL, PART = 4096, 8


@dataclass(frozen=True, slots=True)
class Base:
    """The first `length` elements of a storage, of which the inputs at `positions` are views.

    It begins where the storage does, so that `as_strided` means the same for it and for its replacement. Where the
    program writes to one of the inputs, the first position is one of these: writes to the base count as writes to it.
    """

    positions: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """The memory shared by inputs with those that the graph changes; `why_not` is the reason if there are no bases.

    `written`: the positions of inputs that the graph writes to, directly or by views.
    """

    bases: tuple[Base, ...] = ()
    why_not: str = ""
    written: tuple[int, ...] = ()

    def base_of(self, position: int) -> int | None:
        """Return the number of the base that an input is a view of."""
        return next((number for number, base in enumerate(self.bases) if position in base.positions), None)


def sharing_of(refs: Sequence[TensorRef]) -> Sharing | None:
    """Return the sharing among the inputs of a graph, or None if none shares memory with a mutated one."""
    strided = [ref for ref in refs if ref.real is not None and ref.fake.layout is torch.strided]
    if all_disjoint(*(ref.real for ref in strided)) or not any(
        _overlapped(ref, strided) for ref in strided if ref.is_mutated()
    ):
        return None
    groups: dict[int, list[int]] = {}
    for position, ref in enumerate(refs):
        if ref in strided and ref.real is not None:
            groups.setdefault(storage_id(ref.real), []).append(position)
    shared = [group for group in groups.values() if any(_overlapped(refs[at], strided) for at in group)]
    for group in shared:
        reason = _why_no_base([refs[at] for at in group], strided)
        if reason is not None:
            return Sharing(why_not=reason)
    written = [at for group in shared for at in group if _is_written(refs[at])]
    ordered = [sorted(group, key=lambda at: at not in written) for group in shared]
    bases = tuple(Base(tuple(group), max(_end(refs[at].real) for at in group)) for group in ordered)
    return Sharing(bases, written=tuple(at for at in written if not refs[at].fake.is_inference()))


def _is_written(ref: TensorRef) -> bool:
    """Whether operations write to the tensor or its views; a tensor that only shares its memory has another version."""
    return any(_viewed(one) is _viewed(ref.fake) for one in ref.mutated_parts())


def _viewed(fake: torch.Tensor) -> torch.Tensor:
    return fake if fake._base is None else fake._base


def _overlapped(ref: TensorRef, all_refs: Sequence[TensorRef]) -> bool:
    """Whether an input's memory overlaps that of another, one of the two being mutated."""
    others = [other for other in all_refs if other is not ref and (ref.is_mutated() or other.is_mutated())]
    return not no_overlap(ref.real, *(other.real for other in others))


def _why_no_base(group: Sequence[TensorRef], all_refs: Sequence[TensorRef]) -> str | None:
    if any(_overlapped(ref, [ref, *(other for other in all_refs if other not in group)]) for ref in group):
        return "their memory belongs to several storages"
    kinds = {(ref.fake.dtype, ref.real is not None and ref.real.is_inference()) for ref in group}
    if len(kinds) > 1:
        return "they are of several types"
    if not all(share_storage(ref.fake, group[0].fake) for ref in group):  # a view and its base would count as two
        return "they are traced as separate tensors, for dynamic shapes"
    if max(_end(ref.real) for ref in group) > SMALL + PART * sum(ref.fake.numel() for ref in group):
        return "they are a small part of their memory, all of which a compiled graph would read"
    return next((reason for ref in group for reason in _obstacles(ref)), None)


def _obstacles(ref: TensorRef) -> Iterator[str]:
    real, spec = ref.real, ref.spec
    assert real is not None
    assert spec is not None
    if type(real) not in PLAIN_TYPES:
        yield "one is of a subclass of tensors"
    if any(map(is_symbolic, (*spec[0], *spec[1]))):
        yield "their sizes are symbols"
    if real.requires_grad or ref.fake.requires_grad:
        yield "one takes part in gradients"
    if spec != state_of(ref.fake):
        yield "one is given another shape or type"
    if real.is_conj() or real.is_neg():
        yield "one is a conjugate or negative view"


def _end(real: torch.Tensor | None) -> int:
    """Return the end of the elements that a tensor shows, in its storage."""
    if real is None or not real.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(real.shape, real.stride(), strict=True))
    return int(real.storage_offset() + last + 1)


def sharing_guards(refs: Sequence[TensorRef], sharing: Sharing) -> Iterator[Guard]:
    """Return guards that the inputs lie in the bases' memory as before, and that no other input does."""
    for base in sharing.bases:
        members = [refs[at] for at in base.positions]
        others = tuple(ref.source for ref in refs if ref not in members and _is_strided(ref) and ref.source is not None)
        for member in members:
            assert member.real is not None
            assert member.source is not None
            offset = TensorPropertySource(member.source, "storage_offset")
            yield Guard(offset, "EQUALS_MATCH", int(member.real.storage_offset()))
            if member is not members[0]:
                assert members[0].source is not None
                yield Guard(member.source, "SAME_STORAGE", members[0].source)
            if others:
                yield Guard(member.source, "NO_OVERLAP", others)


def _is_strided(ref: TensorRef) -> bool:
    return ref.real is not None and ref.fake.layout is torch.strided


# The graph


def over_memory(graph: FinishedGraph, sharing: Sharing) -> FinishedGraph:
    """Return the same graph over the bases, which come first, and the inputs that are in none."""
    placeholders = [node for node in graph.module.graph.nodes if node.op == "placeholder"]
    made = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    firsts = [base.positions[0] for base in sharing.bases]
    memory = [made.placeholder(f"memory_{number}") for number in range(len(firsts))]
    inputs = []
    for node, first, base in zip(memory, firsts, sharing.bases, strict=True):
        # The fakes of the members lie in one fake storage; so must that of the base.
        EXAMPLE.set(node, _whole(EXAMPLE.of(placeholders[first]), base))
        inputs.append(GraphInput(graph.inputs[first].source, _whole(graph.inputs[first].example, base)))
    for position, (node, given) in enumerate(zip(placeholders, graph.inputs, strict=True)):
        if sharing.base_of(position) is None:
            nodes[node] = made.node_copy(node)
            inputs.append(given)
    for position, (node, given) in enumerate(zip(placeholders, graph.inputs, strict=True)):
        number = sharing.base_of(position)
        if number is not None:
            nodes[node] = _view(made, memory[number], node, given.example)
    for node in graph.module.graph.nodes:
        if node.op != "placeholder":
            nodes[node] = made.node_copy(node, nodes.__getitem__)
    mutated = list(range(len(memory)))  # the compiler need not know which others are changed
    return FinishedGraph(new_module(graph.module, made), inputs, mutated)


def _view(graph: fx.Graph, memory: fx.Node, node: fx.Node, example: torch.Tensor) -> fx.Node:
    layout = (tuple(example.shape), tuple(example.stride()), int(example.storage_offset()))
    view = graph.call_function(torch.as_strided, (memory, *layout))
    view.meta.update(node.meta)
    return view


def _whole(member: torch.Tensor, base: Base) -> torch.Tensor:
    """Return a view of the whole base, given a tensor that shows a part of it."""
    return member.as_strided((base.length,), (1,), 0)


def running_over_memory(compiled: Runner, graph: FinishedGraph, sharing: Sharing) -> Runner:
    """Return a callable that runs a graph compiled over bases with the inputs of the traced graph."""
    kept = [position for position in range(len(graph.inputs)) if sharing.base_of(position) is None]

    def run(*inputs: torch.Tensor) -> Any:
        memory = [_whole(inputs[base.positions[0]], base) for base in sharing.bases]
        versions = [inputs[at]._version for at in sharing.written]
        results = compiled.run(*memory, *[inputs[at] for at in kept])
        for at, version in zip(sharing.written, versions, strict=True):
            if inputs[at]._version == version:  # it has a version counter of its own, as `tensor.data` has
                torch.autograd.graph.increment_version(inputs[at])
        return results

    return replace(compiled, run=run, boxed=None)

"""Traces the backward pass, split into the output groups that become autograd nodes: see Note [Output groups]."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge
from torch.utils.hooks import RemovableHandle

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.collect import Collected, InputPair, ScalarOutputs
from framesmith_aot.trace.numbers import computed_with
from framesmith_aot.trace.output_groups import (
    BEFORE_ALL_OTHERS,
    End,
    Ends,
    Hidden,
    NodeResult,
    NodeShape,
    Operand,
    OutputGroup,
    Refusal,
    edge_of,
    edges,
    edges_of,
    fitting,
    is_dropped,
    joined,
    order_of,
    output_groups,
    sets_to_join,
)
from framesmith_aot.trace.saved import NOTHING_SAVED, REFUSED_BY_AUTOGRAD, SavedByEager, saved_by
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.graphs.autograd_calls import stop_at
from framesmith_aten.graphs.autograd_functions import asks_absent_gradients
from framesmith_aten.layouts import is_dense, overlaps_itself, storage_id
from framesmith_aten.meta import TANGENT
from framesmith_aten.symbolic import has_symbols, is_data_dependent, is_symbolic
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.contexts import ambient
from framesmith_guards.torch_adapter import aten


class BackwardError(AotUnsupported):
    """An operator raised in the backward pass. `numbers`: the symbols that operators compute with."""

    def __init__(self, id: str, what: str, why: str, numbers: Sequence[Any]) -> None:
        super().__init__(id, what, why)
        self.numbers = numbers


@dataclass
class JointNode:
    """One autograd node in the joint graph: a tangent for each result, a gradient (or None) for each operand.

    `group`: its position among the output groups as `output_groups` returns them.
    """

    shape: NodeShape
    group: int
    tangents: list[fx.Node]
    grads: list[fx.Node | None]


def trace_backward(
    tracer: GraphTracer, found: Collected, pairs: Sequence[InputPair], join_groups: bool
) -> tuple[list[JointNode], list[frozenset[int]]]:
    """Trace the pass from the slots back to the inputs; return its nodes, and the sets of slots with a joined node.

    Raises AotUnsupported for what it raises. `join_groups`: see `sets_to_join`.
    """
    slots = found.slots
    tracer.phase = "backward"
    roots = {index: wrapper for index, wrapper in enumerate(slots) if functional.differentiable(wrapper)}
    ends = _ends(pairs)
    ends.update((edge_of(leaf), End("dropped", at)) for at, leaf in enumerate(found.leaves))
    ends.update((edge_of(view), End("output", at)) for at, view in found.views.items())
    bases = {End("output", at): slots for at, slots in found.meta.recorded_views.items()}
    groups = output_groups(roots, ends, bases, found.meta.read_together)
    if not all(group.into for group in groups):
        raise AotUnsupported("inner-leaf", "a result with gradients", "its gradients reach no input of the graph")
    saved = _saved(groups, slots, pairs)
    sets = sets_to_join(groups, saved) if join_groups else []
    if sets:
        groups = joined(groups, sets, ends)
        groups = [groups[index] for index in order_of(groups, bases)]
        saved = _saved(groups, slots, pairs)
    passing = _BackwardTrace(tracer, groups, ends)
    seeds = {index: passing.tangent(f"tangent_{index}", wrapper) for index, wrapper in roots.items()}
    wanted = [pair.leaf for pair in pairs if pair.requires_grad]
    wanted += [functional.leaf_of(leaf) for leaf in found.leaves if ends[edge_of(leaf)].kind == "output"]
    refusals: Refusals = {}
    order: Sequence[int] = range(len(groups))
    with _no_autocast(), torch.no_grad(), torch.autograd.set_detect_anomaly(False):
        try:
            passing.run(roots, seeds, wanted)
        except (AotUnsupported, TraceUnsupported):
            raise
        except Exception as error:
            passing = _BackwardTrace(tracer, groups, ends)
            refusals = _refusals(passing, seeds)
            if not refusals and is_data_dependent(error):
                what, why = "a data-dependent branch in the backward pass", str(error).splitlines()[0]
                raise AotUnsupported("data-dependent", what, why) from error
            if not refusals:
                what = f"{type(error).__name__} in the backward pass"
                raise BackwardError("backward-error", what, str(error), computed_with(tracer.graph)) from error
            if sets:
                raise AotUnsupported(
                    "joined-groups", "a refused gradient", "it would be refused for all results"
                ) from error
            order = order_of(groups, bases, _stops(refusals))
            passing.reorder(order)
            refusals = {order.index(index): given for index, given in refusals.items()}
    saved = [saved[index] for index in order]
    return passing.nodes(seeds, saved, refusals, found.numbers, order), sets


def _saved(
    groups: Sequence[OutputGroup], slots: Sequence[torch.Tensor], pairs: Sequence[InputPair]
) -> list[SavedByEager]:
    of_slots = {storage_id(wrapper): index for index, wrapper in enumerate(slots)}
    tensors = ((index, pair) for index, pair in enumerate(pairs) if pair.is_tensor)
    of_inputs = {storage_id(one): index for index, pair in tensors for one in (pair.leaf, pair.run)}
    return [saved_by(group.nodes, of_slots, of_inputs) for group in groups]


#: By group and operand: why autograd gives no gradient.
Refusals = dict[int, dict[End | GradientEdge, Refusal]]


def _refusals(passing: _BackwardTrace, seeds: Mapping[int, torch.Tensor]) -> Refusals:
    """Return what autograd itself refuses, from a pass through each group; nothing where a pass fails otherwise."""
    found: Refusals = {}
    try:
        for index, group in enumerate(passing.groups):
            if passing.refusal(index, seeds, group.into) is None:
                continue
            passing.forget(index)
            for source in group.into:
                refusal = passing.refusal(index, seeds, [source])
                if refusal is not None:
                    found.setdefault(index, {})[source] = refusal
    except Exception:
        return {}
    return found


def _stops(refusals: Refusals) -> dict[int, int]:
    """Return, for each group with a refusal, the sequence number of the node where autograd's engine stops.

    Groups whose refusing node the engine reaches first of all are left out.
    """
    numbers = {index: max(one.number for one in given.values()) for index, given in refusals.items()}
    return {index: number for index, number in numbers.items() if number != BEFORE_ALL_OTHERS}


def _ends(pairs: Sequence[InputPair]) -> dict[GradientEdge, End]:
    ends: dict[GradientEdge, End] = {}
    wanted = [index for index, pair in enumerate(pairs) if pair.requires_grad]
    for index, edge in zip(wanted, edges_of([pairs[index].leaf for index in wanted]), strict=True):
        ends[edge] = End("input", index)
        history = pairs[index].history
        if history is not None:
            ends[GradientEdge(history, 0)] = End("input", index)
    return ends


class _BackwardTrace:
    """One backward pass over all groups, split between them by hooks on autograd's nodes.

    The gradients of a group's operands are noted where they leave the group; those that enter a group are replaced by
    tangents.
    """

    def __init__(self, tracer: GraphTracer, groups: Sequence[OutputGroup], ends: Ends) -> None:
        self.tracer = tracer
        self.groups = groups
        self.ends = ends
        #: By group and operand: the gradient so far.
        self.grads: dict[tuple[int, End | GradientEdge], torch.Tensor] = {}
        #: The tangents of hidden results.
        self.hidden: dict[GradientEdge, torch.Tensor] = {}

    def tangent(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Return a new placeholder for the gradient of `like`."""
        with functional.below():
            value = _tangent_like(like)
        TANGENT.set(self.tracer.placeholder(name, value), True)
        return functional.wrap(value)

    def run(
        self, roots: Mapping[int, torch.Tensor], seeds: Mapping[int, torch.Tensor], wanted: Sequence[torch.Tensor]
    ) -> None:
        """Run the pass from these slots to the inputs that are `wanted`."""
        if roots and wanted:
            given = [seeds[slot] for slot in roots]
            with self._listening(seeds):
                torch.autograd.grad([*roots.values()], wanted, given, retain_graph=True, allow_unused=True)

    def refusal(
        self, index: int, seeds: Mapping[int, torch.Tensor], wanted: Collection[End | GradientEdge]
    ) -> Refusal | None:
        """Return why autograd refuses the gradients that are `wanted` of a group's operands, or None.

        Notes these gradients. Raises what the pass raises otherwise.
        """
        group = self.groups[index]
        came = {
            edge: functools.reduce(torch.add, [seeds[slot] for slot in slots]) if slots else self._tangent_inside(edge)
            for edge, slots in zip(group.out, group.slots, strict=True)
        }
        for node in _in_engine_order(_leading(group, self.ends, wanted)):
            arrived = [came.get(GradientEdge(node, number)) for number in range(len(node._input_metadata))]
            try:
                given = [*_given(node, _run_alone(node, arrived))]
            except Exception as error:
                if any(words in str(error) for words in REFUSED_BY_AUTOGRAD):
                    number = node._sequence_nr()
                    first = number == BEFORE_ALL_OTHERS and any(edge.node is node for edge in group.out)
                    return Refusal(type(error), str(error), number, first)
                raise
            for edge, grad in given:
                if self.ends.get(edge, edge) in wanted:
                    self._note(index, self.ends.get(edge, edge), grad)
                elif edge not in self.ends:
                    came[edge] = grad if edge not in came else came[edge] + grad
        return None

    def forget(self, index: int) -> None:
        self.grads = {key: grad for key, grad in self.grads.items() if key[0] != index}

    def reorder(self, order: Sequence[int]) -> None:
        """Reorder the groups; `order` holds their present positions."""
        self.groups = [self.groups[index] for index in order]
        self.grads = {(order.index(index), source): grad for (index, source), grad in self.grads.items()}

    @contextmanager
    def _listening(self, seeds: Mapping[int, torch.Tensor]) -> Iterator[None]:
        """Install hooks where gradients enter and leave groups. `seeds`: the tangents of slots."""
        handles = [handle for index in range(len(self.groups)) for handle in self._listen(index, seeds)]
        handles += stop_at(self.ends)
        try:
            yield
        finally:
            for handle in handles:  # hooks and nodes are a cycle that the garbage collector does not see
                handle.remove()

    def _listen(self, index: int, seeds: Mapping[int, torch.Tensor]) -> Iterator[RemovableHandle]:
        group = self.groups[index]
        inner = set(group.nodes)
        inner_edges = {edge for edge, slots in zip(group.out, group.slots, strict=True) if not slots}
        for node in group.nodes:
            if any(edge.node not in inner or edge in inner_edges or edge in self.ends for edge in edges(node)):
                yield node.register_hook(functools.partial(self._leave, index, node))
        for node in {edge.node for edge in group.out}:
            entering = {edge: group.slots_of(edge) for edge in group.out if edge.node is node}
            given = {edge: [seeds[slot] for slot in slots] for edge, slots in entering.items()}
            yield node.register_prehook(functools.partial(self._enter, index, given))

    def _leave(self, index: int, node: Any, grads: Sequence[Any], _: Any) -> None:
        """Note the gradients that a node gives to operands of its group, and to edges that other groups read too."""
        group = self.groups[index]
        for edge, grad in _given(node, grads):
            target = self.ends.get(edge, edge)
            if (target in group.into and not is_dropped(target)) or edge in group.out:
                self._note(index, target, grad)

    def _note(self, index: int, target: End | GradientEdge, grad: torch.Tensor) -> None:
        value = functional.current_value(grad)
        with functional.below():
            known = self.grads.get((index, target))
            self.grads[index, target] = value if known is None else aten.add.Tensor(known, value)

    def _enter(
        self, index: int, seeds: Mapping[GradientEdge, Sequence[torch.Tensor]], grads: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """Replace the gradients that enter a node by tangents, plus the gradient from its own group."""
        entering = list(grads)
        for edge, given in seeds.items():
            grad = entering[edge.output_nr]
            if grad is None:
                continue
            parts = list(given)
            if not given:
                self.hidden[edge] = self.tangent(f"tangent_{len(self.hidden)}_inside", grad)
                own = self.grads.get((index, edge))
                parts = [self.hidden[edge], *([] if own is None else [functional.wrap(own)])]
            entering[edge.output_nr] = functools.reduce(torch.add, parts)
        return tuple(entering)

    def nodes(
        self,
        seeds: Mapping[int, torch.Tensor],
        saved: Sequence[SavedByEager],
        refusals: Refusals,
        numbers: ScalarOutputs,
        order: Sequence[int],
    ) -> list[JointNode]:
        """Return the autograd nodes after the pass. `saved`: by eager mode, by group; `order`: see `JointNode`."""
        found: list[JointNode] = []
        positions: dict[GradientEdge, NodeResult] = {}
        for index, group in enumerate(self.groups):
            results: list[int | Hidden] = []
            tangents: list[fx.Node] = []
            for edge, slots in zip(group.out, group.slots, strict=True):
                positions[edge] = NodeResult(index, len(results))
                results += slots or [_hidden(edge, numbers.of)]
                of_edge = [seeds[slot] for slot in slots] or [self._tangent_inside(edge)]
                tangents += [self.tracer.node_of(functional.current_value(one)) for one in of_edge]
            refused = refusals.get(index, {})
            operands = [
                Operand(source if isinstance(source, End) else positions[source], reached, refused.get(source))
                for source, reached in zip(group.into, group.reached, strict=True)
            ]
            eager_saved = NOTHING_SAVED if len(refused) == len(operands) else saved[index]
            grads = [self.grads.get((index, source)) for source in group.into]
            asks = any(asks_absent_gradients(node, len(results)) for node in group.nodes)
            shape = NodeShape(tuple(results), tuple(operands), eager_saved, asks)
            grad_nodes = [None if grad is None else self.tracer.node_of(grad) for grad in grads]
            found.append(JointNode(shape, order[index], tangents, grad_nodes))
        return found

    def _tangent_inside(self, edge: GradientEdge) -> torch.Tensor:
        """Return the tangent of a hidden result; an unused one where no gradient came there."""
        if edge not in self.hidden:
            hidden = _hidden(edge)
            with functional.below():
                like = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
            self.hidden[edge] = self.tangent(f"tangent_{len(self.hidden)}_inside", like)
        return self.hidden[edge]


def _leading(group: OutputGroup, ends: Ends, wanted: Collection[End | GradientEdge]) -> list[Any]:
    """Return the nodes of a group on the way to the operands that are `wanted`."""
    inner, leading = {*group.nodes}, set[Any]()
    pending = [node for node in group.nodes if any(ends.get(edge, edge) in wanted for edge in edges(node))]
    readers: dict[Any, list[Any]] = {}
    for node in group.nodes:
        for edge in edges(node):
            if edge.node in inner and edge not in ends:
                readers.setdefault(edge.node, []).append(node)
    while pending:
        node = pending.pop()
        if node not in leading:
            leading.add(node)
            pending += readers.get(node, ())
    return [node for node in group.nodes if node in leading]


def _in_engine_order(nodes: Sequence[Any]) -> Iterator[Any]:
    """Yield the nodes in the engine's order: of those with all gradients, the highest sequence number first."""
    inner = {*nodes}
    onward = {node: [edge.node for edge in edges(node) if edge.node in inner] for node in nodes}
    awaited = collections.Counter(itertools.chain.from_iterable(onward.values()))
    ready = [node for node in nodes if not awaited[node]]
    while ready:
        node = max(ready, key=lambda node: node._sequence_nr())
        ready.remove(node)
        yield node
        awaited.subtract(onward[node])
        ready += [one for one in dict.fromkeys(onward[node]) if not awaited[one]]


def _run_alone(node: Any, arrived: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
    """Return the gradient that a node gives for each of its edges."""
    if callable(node) and unstable.current_graph_task_id() < 0:
        grads = node(*arrived)
        return grads if isinstance(grads, tuple) else (grads,)
    # Only the engine can call a Python node, and within a pass others ask it what to compute: run a pass to its edges.
    given = [(GradientEdge(node, number), grad) for number, grad in enumerate(arrived) if grad is not None]
    onward = list(dict.fromkeys(edges(node)))
    if not given or not onward:
        return [None for _ in node.next_functions]
    roots, seeds = zip(*given, strict=True)
    found = torch.autograd.grad(roots, onward, seeds, retain_graph=True, allow_unused=True)
    sums = dict(zip(onward, found, strict=True))
    return [None if at is None else sums.pop(GradientEdge(at, number), None) for at, number in node.next_functions]


def _given(node: Any, grads: Sequence[torch.Tensor | None]) -> Iterator[tuple[GradientEdge, torch.Tensor]]:
    """Yield the gradients that a node gives by edge, fitted to their receivers."""
    for (source, number), grad in zip(node.next_functions, grads, strict=True):
        if grad is not None and source is not None:
            yield GradientEdge(source, number), fitting(grad, source._input_metadata[number])


def _hidden(edge: GradientEdge, number: Callable[[Any], Any] = lambda number: number) -> Hidden:
    known = edge.node._input_metadata[edge.output_nr]
    shape = [number(length) if is_symbolic(length) else length for length in known.shape]
    return Hidden(tuple(shape), known.dtype, known.device)


def _tangent_like(wrapper: torch.Tensor) -> torch.Tensor:
    """Return a tensor like a slot's gradient: the slot's strides, or contiguous where elements overlap.

    Contiguous also where symbolic strides are no permutation of contiguous ones: see `BackwardPass`.
    """
    vague = has_symbols(wrapper) and not is_dense(wrapper.shape, wrapper.stride())
    if overlaps_itself(wrapper) or vague:
        return torch.empty(wrapper.shape, dtype=wrapper.dtype, device=wrapper.device)
    return torch.empty_strided(wrapper.shape, wrapper.stride(), dtype=wrapper.dtype, device=wrapper.device)


@contextmanager
def _no_autocast() -> Iterator[None]:
    """Inside, autocast is off: gradients are computed in the dtypes of the forward pass."""
    with ambient.preserved() as state:
        ambient.write(ambient.without_autocast(state))
        yield

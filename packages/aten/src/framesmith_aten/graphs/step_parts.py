"""The parts of a training step: which calls of a graph are forward pass, which backward pass, which update.

Note [Parts]: of a graph that holds a whole step, the capture marks what the calls of autograd's engine are made of
(`PART`). `mark_updates` finds the update: calls that write, without a history, to parameters, to gradients, or to older
tensors (an optimizer's state, averages) where gradients are off or decide what is written, and what is computed for
these writes alone: clipping, norms, bias corrections. All else is forward. In a joint graph the phases of the trace say
more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import torch
from torch import fx

from framesmith_aten.layouts import storage_id
from framesmith_aten.meta import EFFECTS, EXAMPLE, MODE_CHANGE, PART, PHASE, StepPart
from framesmith_aten.nested import tensors_in
from framesmith_aten.torch_adapter import unstable

#: The parts, in the order in which a step runs them.
PARTS: Final[tuple[StepPart, ...]] = get_args(StepPart)

CALLS: Final = ("call_function", "call_method")


def part_of(node: fx.Node) -> StepPart:
    """Return the part that a call of a marked graph belongs to."""
    return "backward" if PHASE.get(node) == "backward" else PART.get(node) or "forward"


def calls_by_part(graph: fx.Graph) -> Counter[StepPart]:
    """Return the number of calls of each part."""
    return Counter(part_of(node) for node in graph.nodes if node.op in CALLS)


@dataclass
class _Tensors:
    """The storages of a torch-level graph: of its inputs, of parameters among them, of gradients."""

    inputs: set[int] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)


def mark_updates(graph: fx.Graph) -> None:
    """Mark the calls of a torch-level graph that update parameters; see Note [Parts]. Grad mode is the call's."""
    tensors = _Tensors()
    recorded = dict(_calls_and_modes(graph))
    for node in graph.nodes:
        _note(node, tensors)
    own = tensors.parameters | tensors.gradients
    writes = {node for node in recorded if _written(node) & own}
    if not writes and not tensors.gradients:
        return
    from_gradients = {*_from_gradients(recorded, tensors)}
    for node, enabled in recorded.items():
        if _written(node) & tensors.inputs and (not enabled or node in from_gradients):
            writes.add(node)
    needed: set[fx.Node] = set()
    for node in reversed(recorded):
        serves = node in needed or (_written(node) and not needed.isdisjoint(node.all_input_nodes))
        if node in writes or serves:
            PART.set(node, "update")
            needed.update(node.all_input_nodes)


def _calls_and_modes(graph: fx.Graph) -> Iterator[tuple[fx.Node, bool]]:
    """Yield the calls that may be of the update, in order, with the grad mode of each: those without a history."""
    enabled = torch.is_grad_enabled()
    for node in graph.nodes:
        if node.target is unstable.set_grad_enabled:
            enabled = bool(node.args[0])
        elif node.op in CALLS and not (PART.on(node) or MODE_CHANGE.get(node) or _has_history(node)):
            yield node, enabled


def _has_history(node: fx.Node) -> bool:
    return any(value.requires_grad and not value.is_leaf for value in tensors_in(EXAMPLE.get(node)))


def _note(node: fx.Node, tensors: _Tensors) -> None:
    value: Any = EXAMPLE.get(node)
    if node.op == "placeholder" and isinstance(value, torch.Tensor):
        tensors.inputs |= _storages([value])
        if value.requires_grad and value.is_leaf:
            tensors.parameters |= _storages([value])
    elif PART.get(node) == "backward":
        tensors.gradients |= _storages(tensors_in(value)) | _written(node)


def _from_gradients(calls: Iterable[fx.Node], tensors: _Tensors) -> Iterator[fx.Node]:
    """Yield the calls whose results depend on gradients, other than by parameters: a loss scale, a count of steps."""
    derived = {*tensors.gradients}
    for node in calls:
        read = [EXAMPLE.get(one) for one in node.all_input_nodes]
        if not derived.isdisjoint(_storages(tensors_in(read))):
            derived |= (_storages(tensors_in(EXAMPLE.get(node))) | _written(node)) - tensors.parameters
            yield node


def _written(node: fx.Node) -> set[int]:
    effects = EFFECTS.get(node)
    return set() if effects is None else _storages(effects.written)


def _storages(values: Any) -> set[int]:
    return {storage_id(value) for value in values if value.layout is torch.strided}

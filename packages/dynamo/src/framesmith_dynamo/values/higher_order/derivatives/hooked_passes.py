"""Backward passes in the compiled function that run hooks: of leaves, of other tensors, of modules; `retain_grad`.

Note [Hooks in a pass]: the pass is cut where a hook waits for a gradient. Autograd's engine runs from the loss to the
first of these tensors and to leaves, and stops there; the hook is interpreted like any call, with the gradients that
came, and the engine goes on from what it returns. The order of all hooks is that in which the engine would reach their
nodes: it is read off the histories of the fakes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.higher_order.derivatives.engine_calls import record_engine, refuse
from framesmith_dynamo.values.modules.backward_hooks import HookNodeValue, register_node_hook, register_node_prehook
from framesmith_dynamo.values.tensors.hooks import HandleValue
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_guards import AttrSource

#: Adds a gradient to a leaf's; `True`: others may have the gradient.
Accumulate = Callable[[Tracer, TensorValue, TensorValue, bool], None]
_Edge = tuple[Any, int]


@dataclass(eq=False)
class _Event:
    """A node at which hooks run: `targets` are its tensors for which gradients are awaited.

    `module`: it is the node of a module's arguments or results, with hooks.
    """

    targets: list[TensorValue]
    module: HookNodeValue | None = None

    @property
    def onward(self) -> Sequence[TensorValue]:
        """The tensors from which the pass goes on behind the hooks."""
        return self.targets if self.module is None else self.module.tensors


@dataclass
class HookedPass:
    """A pass that runs hooks. `events`: in the engine's order, those of all `leaves` (by id) among them."""

    tr: Tracer
    outputs: Sequence[TensorValue]
    events: Sequence[_Event]
    leaves: Collection[int]
    #: By the id of a target: the gradients that have come.
    arrived: dict[int, list[Value]] = field(default_factory=dict)
    #: Tensors that others have than the pass, by the id of the fake.
    held: set[int] = field(default_factory=set)

    @functools.cached_property
    def targets(self) -> dict[int, TensorValue]:
        """The tensors at which the engine stops, by id."""
        return {id(one): one for event in self.events for one in event.targets}

    @functools.cached_property
    def stops(self) -> dict[_Edge, TensorValue]:
        """Those of them that are no leaves, by their edges."""
        return {_edge(one): one for key, one in self.targets.items() if key not in self.leaves}

    def run(self, given: Sequence[Value], retained: bool, accumulate: Accumulate) -> None:
        """Run the pass from the outputs with these gradients (None: 1)."""
        tr, enabled = self.tr, torch.is_grad_enabled()
        self.held = {*tr.builder.refs}
        keeps = retained or self._reads_twice()
        known = len(tr.facts.registered), len(tr.facts.retains_grad)
        if enabled:
            tr.emit_state(unstable.set_grad_enabled, False)
        try:
            self._go_on([*self.outputs], [*given], keeps)
            for event in self.events:
                grads = {id(one): self._sum(one) for one in event.targets}
                first = event.targets[0]
                if any(grads[id(one)] is None and self._before(one) for one in event.targets):
                    refuse("a hook of a tensor without a gradient", early=False)
                if id(first) in self.leaves:
                    self._end(first, grads[id(first)], accumulate)
                elif any(grads.values()):
                    self._go_on(*self._through(event, grads), keeps, event)
            if known != (len(tr.facts.registered), len(tr.facts.retains_grad)):
                refuse("a hook that registers hooks", early=False)
            if keeps and not retained:  # frees what several parts of the pass have read
                ends = [one for key, one in self.targets.items() if key in self.leaves]
                record_engine(tr, self.outputs, ends, given, retained=False)
        finally:
            if enabled:
                tr.emit_state(unstable.set_grad_enabled, True)
        if not retained:
            self._forget()

    def _reads_twice(self) -> bool:
        """Whether parts of the pass have nodes in common: none of them may free a history then."""
        found: Counter[Any] = Counter()
        targets = {*map(_edge, self.targets.values())}
        behind = {edge: _reached([edge], ()).edges & targets for edge in self.stops}
        for event in (None, *self.events):
            if event is None or id(event.targets[0]) not in self.leaves:
                roots = self.outputs if event is None else event.onward
                starts = [_edge(one) for one in roots if one.fake.requires_grad and not self._awaits(one, event)]
                part = _reached(starts, self.stops)
                found.update(part.nodes)
                if any(behind.get(edge, frozenset()) & part.edges for edge in part.edges):
                    return True  # the engine runs nodes behind a stop on the way to a target, though without gradients
        return max(found.values(), default=0) > 1

    def _awaits(self, tensor: TensorValue, event: _Event | None) -> bool:
        """Whether a gradient for a tensor waits for its hooks; `event`: the one that the pass goes on from."""
        return id(tensor) in self.targets and not (event is not None and any(tensor is one for one in event.targets))

    def _go_on(
        self, roots: Sequence[TensorValue], given: Sequence[Value], keeps: bool, event: _Event | None = None
    ) -> None:
        """Run the engine from some tensors to the next targets, and note the gradients that come there."""
        passing: list[tuple[TensorValue, Value]] = []
        for root, grad in zip(roots, given, strict=True):
            if not self._awaits(root, event):
                passing.append((root, grad))
            else:
                come = self.tr.call_torch(torch.ones_like, (root,), {}) if grad.is_none() else grad
                self.arrived.setdefault(id(root), []).append(come)
        starts = [_edge(root) for root, _ in passing]
        edges = _reached(starts, self.stops).edges
        targets = [one for one in self.targets.values() if _edge(one) in edges]
        if not targets:
            return
        stops = [one for edge, one in self.stops.items() if edge in edges and edge not in starts]
        grads = [grad for _, grad in passing]
        found = record_engine(self.tr, [root for root, _ in passing], targets, grads, retained=keeps, stops=stops)
        for one, grad in zip(targets, found, strict=True):
            if not grad.is_none():
                self.arrived.setdefault(id(one), []).append(grad)

    def _sum(self, target: TensorValue) -> Value | None:
        found = self.arrived.pop(id(target), [])
        return (
            functools.reduce(lambda one, other: self.tr.call_torch(torch.add, (one, other), {}), found)
            if found
            else None
        )

    # Hooks

    def _hooks_of(self, register: Callable[..., Any], tensor: TensorValue) -> list[Value]:
        """Return the hooks that the trace has registered on a tensor, or on the node that made it."""
        handles = (one for one in self.tr.facts.registered if one.change is not None and one.register is register)
        return [one.hook for one in handles if one.tensor is tensor]

    def _existing(self, tensor: TensorValue, name: str) -> list[Value]:
        """Return the hooks of an input, guarded."""
        tr, real, source = self.tr, tensor.ref.real, tensor.source
        found = None if real is None else getattr(real, name)
        if not found or source is None:
            return []
        hooks: list[Value] = tr.wrap(found, AttrSource(source, name)).call_method(tr, "values", (), {}).unpack(tr)
        return hooks

    def _before(self, tensor: TensorValue) -> list[Value]:
        """Return the hooks of a tensor that see its gradient."""
        return self._existing(tensor, "_backward_hooks") + self._hooks_of(torch.Tensor.register_hook, tensor)

    def _changed(self, tensor: TensorValue, grad: Value) -> Value:
        """Return a tensor's gradient after its hooks."""
        tr = self.tr
        for hook in self._before(tensor):
            result = tr.call(hook, (grad,), {})
            if not result.is_none():
                _check_like(result, grad)
                grad = result
        if id(tensor) in tr.facts.retains_grad:
            before = tensor.getattr_(tr, "grad")
            kept = tr.call_torch("clone", (grad,), {"memory_format": tr.constant(torch.contiguous_format)})
            tensor.retain(tr, kept if before.is_none() else tr.call_torch(torch.add, (before, grad), {}))
        return grad

    def _end(self, leaf: TensorValue, grad: Value | None, accumulate: Accumulate) -> None:
        """Run a leaf's hooks before and after its gradient is accumulated."""
        if grad is None:
            return
        grad = self._changed(leaf, grad)
        assert isinstance(grad, TensorValue)
        others = (one.fake for found in self.arrived.values() for one in found if isinstance(one, TensorValue))
        shown = bool(self._before(leaf))
        accumulate(self.tr, leaf, grad, shown or id(grad.fake) in self.held or any(one is grad.fake for one in others))
        self.held.add(id(grad.fake))
        hooks = self._existing(leaf, "_post_accumulate_grad_hooks")
        for hook in hooks + self._hooks_of(torch.Tensor.register_post_accumulate_grad_hook, leaf):
            with self.tr.builder.recording_part(None):  # it may be an optimizer's step
                result = self.tr.call(hook, (leaf,), {})
            if not result.is_none():
                refuse("a hook that returns something", early=False)

    def _through(self, event: _Event, grads: dict[int, Value | None]) -> tuple[list[TensorValue], list[Value]]:
        """Run the hooks of a node, and return the tensors and gradients from which the pass goes on."""
        came = {one: grads[id(one)] for one in event.targets}
        changed = {id(one): self._changed(one, grad) for one, grad in came.items() if grad is not None}
        if event.module is None:
            return [one for one in event.targets if id(one) in changed], [*changed.values()]
        return self._through_module(event.module, changed)

    def _through_module(self, node: HookNodeValue, changed: dict[int, Value]) -> tuple[list[TensorValue], list[Value]]:
        tr, none = self.tr, self.tr.constant(None)
        first = min(node.views, key=lambda view: not view.fake.requires_grad)
        outer: list[Value] = [changed.get(id(view), none) for view in node.views]
        for hook in self._hooks_of(register_node_prehook, first):
            outer = _replaced(tr, tr.call(hook, (TupleValue(outer),), {}), outer)
        inner = [
            tr.call_torch(torch.zeros_like, (view,), {}) if grad.is_none() else grad
            for view, grad in zip(node.views, outer, strict=True)
        ]
        for hook in self._hooks_of(register_node_hook, first):
            inner = _replaced(tr, tr.call(hook, (TupleValue(inner), TupleValue(outer)), {}), inner)
        pairs = zip(node.tensors, inner, strict=True)
        onward = [(one, grad) for one, grad in pairs if one.fake.requires_grad and not grad.is_none()]
        return [one for one, _ in onward], [grad for _, grad in onward]

    def _forget(self) -> None:
        """Leave hooks of freed histories unregistered: no pass can come there again."""
        freed = {id(one) for one in self.stops.values()}
        for handle in self.tr.facts.registered:
            if isinstance(handle, HandleValue) and id(handle.tensor) in freed:
                handle.forget(self.tr)


def _replaced(tr: Tracer, result: Value, grads: list[Value]) -> list[Value]:
    if result.is_none():
        return grads
    found = result.unpack(tr)
    if len(found) != len(grads):
        refuse("a hook of a node that returns another number of gradients", early=False)
    for new, old in zip(found, grads, strict=True):
        if not (new.is_none() or old.is_none()):
            _check_like(new, old)
    return found


def _check_like(result: Value, grad: Value) -> None:
    """Break where a hook returns another kind of tensor than it gets, which autograd converts or refuses."""
    if not isinstance(result, TensorValue) or not isinstance(grad, TensorValue):
        refuse("a hook that returns no tensor", early=False)
    new, old = result.fake, grad.fake
    if (new.dtype, new.device, new.layout, new.shape) != (old.dtype, old.device, old.layout, old.shape):
        refuse("a hook that returns a gradient of another form", early=False)


# The engine's order


def hooked_pass(
    tr: Tracer, outputs: Sequence[TensorValue], leaves: Sequence[TensorValue], whole: bool
) -> HookedPass | None:
    """Return the pass that runs hooks; None where no hook waits in it. `whole`: it ends at all leaves it reaches."""
    nodes = {_edge(leaf)[0]: _Event([leaf]) for leaf in leaves}
    ends = [*nodes]
    hooked = {id(one.tensor): one.tensor for one in tr.facts.registered if one.change is not None}
    hooked.update((key, one) for key, one in tr.facts.retains_grad.items() if isinstance(one, TensorValue))
    for module in tr.facts.hook_nodes.values():
        assert isinstance(module, HookNodeValue)
        made = [view for view in module.views if view.fake.requires_grad]
        if any(id(view) in hooked for view in made):
            nodes[_edge(made[0])[0]] = _Event(made, module)
    for tensor in hooked.values():
        if tensor.source is None and tensor.fake.requires_grad:
            event = nodes.setdefault(_edge(tensor)[0], _Event([]))
            if not any(tensor is one for one in event.targets):
                event.targets.append(tensor)
    order = _engine_order([_edge(one)[0] for one in outputs], None if whole else ends)
    events = [nodes[node] for node in order if node in nodes]
    if not any(_waits(event, hooked) for event in events):
        return None
    return HookedPass(tr, outputs, events, {id(leaf) for leaf in leaves})


def _waits(event: _Event, hooked: Collection[int]) -> bool:
    real = event.targets[0].ref.real
    existing = any(getattr(real, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))
    return existing or any(id(one) in hooked for one in event.targets)


def _edge(tensor: TensorValue) -> _Edge:
    node, number = get_gradient_edge(tensor.fake)[:2]
    return node, number


@dataclass(frozen=True)
class _Part:
    """The nodes that a part of a pass runs, and the edges that it comes to, in which stops and leaves are."""

    nodes: Collection[Any]
    edges: set[_Edge]


def _reached(starts: Sequence[_Edge], stops: Container[_Edge]) -> _Part:
    nodes, edges = dict.fromkeys(node for node, _ in starts), {*starts}
    waiting = [*nodes]
    while waiting:
        for edge in waiting.pop().next_functions:
            if edge[0] is not None:
                edges.add(edge)
                if edge not in stops and edge[0] not in nodes:
                    nodes[edge[0]] = None
                    waiting.append(edge[0])
    return _Part([node for node in nodes if node.next_functions], edges - {*starts})


def _engine_order(roots: Sequence[Any], ends: Sequence[Any] | None) -> list[Any]:
    """Return the nodes of a pass in the order in which the engine runs them; only those that lead to `ends`, if given.

    Of the nodes that are ready it runs the one with the highest sequence number, which those of leaves have.
    """
    nodes = dict.fromkeys(roots)
    waiting, awaited = [*nodes], Counter[Any]()
    readers: dict[Any, list[Any]] = {}
    while waiting:
        node = waiting.pop()
        for one, _ in node.next_functions:
            if one is not None:
                awaited[one] += 1
                readers.setdefault(one, []).append(node)
                if one not in nodes:
                    nodes[one] = None
                    waiting.append(one)
    needed = nodes if ends is None else _leading(ends, readers)
    made = count()  # of equals the first comes first
    ready = [(-node._sequence_nr(), next(made), node) for node in nodes if not awaited[node]]
    heapify(ready)
    found = []
    while ready:
        _, _, node = heappop(ready)
        found.append(node)
        for one, _ in node.next_functions:
            if one is not None:
                awaited[one] -= 1
                if not awaited[one]:
                    heappush(ready, (-one._sequence_nr(), next(made), one))
    return [node for node in found if node in needed]


def _leading(ends: Sequence[Any], readers: Mapping[Any, Sequence[Any]]) -> set[Any]:
    found, waiting = {*ends}, [*ends]
    while waiting:
        for reader in readers.get(waiting.pop(), ()):
            if reader not in found:
                found.add(reader)
                waiting.append(reader)
    return found

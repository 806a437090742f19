"""Derivatives of the backward pass: the torch-level graph is run again, where autograd sees it.

Note [Second order]: a compiled backward pass is not itself differentiable. Where its gradients are to have a history
(`create_graph`), the graph runs again as plain PyTorch on the inputs of the call, in the same modes and with the same
random numbers, and autograd computes the gradients of the region that is asked for. That costs another forward pass,
and only then. The inputs are kept for it as long as autograd keeps the graph.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.autograd.graph import GradientEdge

from framesmith_aot.errors import DoubleBackwardError, SecondDerivativeWarning
from framesmith_aot.runtime.histories import Grads, edges_of, history_of, led_elsewhere, led_to, own
from framesmith_aot.runtime.replay import FunctionText, tuple_text
from framesmith_aot.trace.interpret import REPLACEMENTS
from framesmith_aot.trace.joint import Binding, JointGraph
from framesmith_aot.trace.kept import CHANGED_SINCE
from framesmith_aot.trace.metadata import GraphMeta, Origin
from framesmith_aot.trace.regions import (
    Ends,
    Hidden,
    NodeShape,
    Operand,
    Region,
    edge_of,
    fitting,
    regions_of,
    stop_at_ends,
)
from framesmith_aten.layouts import storage_id
from framesmith_aten.operators import arguments, is_custom, is_random, updated_statistics
from framesmith_guards.contexts import ambient

#: Results of a functional batch norm before its updated running statistics.
OWN_RESULTS = 3

#: What it takes to run a call again: its inputs, version counters by position, the generators' states before it.
Rerun = tuple[tuple[torch.Tensor, ...], Mapping[int, int], tuple[torch.Tensor, ...]]

#: What a call gave the user and one of its nodes reads, and its version counter. By position: inputs that it changed,
#: and n + that of outputs, where there are n inputs.
Held = Mapping[int, tuple[torch.Tensor, int]]


@dataclass(frozen=True)
class SecondOrder:
    """Runs a graph again for the derivatives of its backward pass.

    `views` are the positions of outputs that nodes read as they read inputs, and the slots they are views of.
    `placeholders` and `attributes` say which input each of the module's operands is, `origins` where the tensors of
    slots with gradients come from, `makers` and `writers` are those of `Collected`, `requires_grad` says what the
    inputs are, `needed` which of them results with gradients depend on, `changed` which the graph writes to, `detached`
    of which only an alias is kept, `unversioned` which count no versions, `devices` whose generators it draws from
    beside the CPU's (`random`: whether it draws at all).
    """

    module: fx.GraphModule
    nodes: Sequence[NodeShape]
    views: Mapping[int, int | None]
    placeholders: Sequence[int]
    attributes: Mapping[str, int]
    origins: Mapping[int, Origin]
    makers: Mapping[int, str]
    writers: Mapping[int, str]
    requires_grad: Sequence[bool]
    needed: frozenset[int]
    changed: frozenset[int]
    detached: frozenset[int]
    unversioned: frozenset[int]
    modes: ambient.Ambient
    random: bool
    devices: tuple[int, ...]

    def keep(self, text: FunctionText, inputs: Sequence[str], watched: Collection[int]) -> str:
        """The expression, evaluated before the call, for what it takes to run the call again: a `Rerun`.

        `watched` are the inputs that autograd itself looks after. All are in a tuple bound to "inputs".
        """
        values = [self._kept(text, at, name) for at, name in enumerate(inputs)]
        kept = "inputs" if values == [*inputs] else tuple_text(values)
        followed = sorted(self.needed - self.changed - self.unversioned - {*watched})
        versions = [f"{at}: {inputs[at]}._version" for at in followed]
        states = []
        if self.random:
            states.append(f"{text.bind('generator_state', torch.default_generator.get_state)}()")
            states += [f"{text.bind('cuda_state', torch.cuda.get_rng_state)}({device})" for device in self.devices]
        return f"({kept}, {{{', '.join(versions)}}}, {tuple_text(states)})"

    @functools.cached_property
    def copied(self) -> frozenset[int]:
        """The inputs of which a call keeps what they were: it changes them, and results depend on them."""
        return self.changed & self.needed

    def _kept(self, text: FunctionText, at: int, name: str) -> str:
        if at in self.copied:
            return f"{text.bind('own', own)}({name})"
        return f"{name}.detach()" if at in self.detached else name

    def read_by(self, node: NodeShape) -> dict[int, Operand]:
        """What the user holds of what `node` reads, itself or through what is hidden: operands, by `Held` position."""
        inputs = len(self.requires_grad)
        found: dict[int, Operand] = {}
        for operand in node.operands:
            if isinstance(operand, int):
                if operand - inputs in self.makers:
                    found[operand] = operand
                continue
            maker = self.nodes[operand[0]]
            slot = maker.results[operand[1]]
            if isinstance(slot, Hidden):
                found |= self.read_by(maker)
                continue
            origin = self.origins[slot]
            if origin.kind == "input" and origin.index in self.writers:
                found[origin.index] = operand
            elif origin.kind == "output" and origin.index in self.makers:
                found[inputs + origin.index] = operand
        return found

    def gradients(
        self,
        rerun: Rerun,
        index: int,
        held: Held,
        results: Mapping[int, torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
    ) -> Grads:
        """The gradients of the operands of autograd node `index`, with their history.

        It passes what is `held`, and those `results` of the node itself, by slot, that eager mode keeps for it.
        Raises RuntimeError where an input was changed in place since, as eager mode does.
        """
        warnings.warn(SecondDerivativeWarning(), stacklevel=2)
        values, versions, states = rerun
        check_versions([(values[at], version) for at, version in versions.items()])
        inputs = [self._alias(at, value) for at, value in enumerate(values)]
        ends = {edge_of(value): at for at, value in enumerate(inputs) if value.requires_grad}
        as_left = {at: history_of(tensor) for at, (tensor, version) in held.items() if tensor._version == version}
        ends.update((edge_of(tensor), -1 - at) for at, tensor in as_left.items())
        made = {self.makers[at - len(inputs)]: tensor for at, tensor in as_left.items() if at >= len(inputs)}
        changed = {self.writers[at]: (at, tensor) for at, tensor in as_left.items() if at < len(inputs)}
        again = _Again(self.module, self.attributes, inputs, made, changed)
        with ambient.preserved(), self._random_numbers_from(states):
            ambient.write(self.modes)
            outputs = again.run(*[inputs[at] for at in self.placeholders])
        roots = {slot: origin.find(inputs, outputs) for slot, origin in self.origins.items()}
        ends.update((edge_of(outputs[at]), len(inputs) + at) for at in self.views)
        bases = {len(inputs) + at: slot for at, slot in self.views.items() if slot is not None}
        regions = regions_of(roots, ends, bases)
        if [_outline(region) for region in regions] != [_outline_of(node) for node in self.nodes]:
            raise DoubleBackwardError("the graph is another one when it is run again")
        seeds = [None if tangent is None else history_of(tangent) for tangent in tangents]
        grads = _through(regions[index], ends, seeds)
        if not results:
            return grads
        instead = {edge_of(roots[slot]): result for slot, result in results.items()}
        instead.update((edge, values[at]) for edge, at in ends.items() if 0 <= at < len(inputs))
        instead.update((edge_of(tensor), tensor) for tensor in as_left.values())
        return led_elsewhere(grads, instead | edges_of(seeds, tangents))

    def _alias(self, at: int, value: torch.Tensor) -> torch.Tensor:
        """An input of the second run: with a node of its own to stop at, and memory of its own if it is written to."""
        with torch.enable_grad():
            if at in self.copied:
                return own(value)
            if at in self.changed:
                return own(value.detach().requires_grad_(self.requires_grad[at]))
            if self.requires_grad[at] and value.requires_grad:
                return value.view_as(value)
            return value.detach().requires_grad_(self.requires_grad[at])  # whatever it has become since

    @contextmanager
    def _random_numbers_from(self, states: Sequence[torch.Tensor]) -> Iterator[None]:
        if not states:
            yield
            return
        # Other threads that draw from these generators meanwhile get the same numbers twice.
        with torch.random.fork_rng(devices=self.devices):
            torch.set_rng_state(states[0])
            for device, state in zip(self.devices, states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


def check_versions(expected: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Raises RuntimeError for tensors that have been changed since they had these versions, as autograd does."""
    for tensor, version in expected:
        if tensor._version != version:
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been {CHANGED_SINCE}: a tensor of shape "
                f"{list(tensor.shape)} is at version {tensor._version}; expected version {version} instead"
            )


def why_not_again(joint: JointGraph) -> str | None:
    """Why the graph cannot be run again for second derivatives, or None."""
    if any(flows and slot not in joint.origins for slot, flows in enumerate(joint.meta.slots)):
        return "a result is not to be found when it is run again"
    if any(is_custom(node.target) for node in _forward_calls(joint)):
        return "it calls an operator of the user's, which may act outside of tensors"
    return None


def _read_by(node: fx.Node) -> set[fx.Node]:
    """The operands that a call's results depend on.

    Normalisation in training computes its own results without the running statistics, which it only updates.
    """
    if node.target is operator.getitem and node.args[1] >= OWN_RESULTS:  # type: ignore[operator]
        return {node.args[0], *_updated(node.args[0])}  # type: ignore[arg-type]
    return {*node.all_input_nodes} - _updated(node)


def _updated(node: fx.Node) -> set[fx.Node]:
    if not isinstance(node.target, OpOverload):
        return set()
    values = arguments(node.target, node.args, node.kwargs)
    return {values[name] for name in updated_statistics(node.target, node.args, node.kwargs)}


def second_order(
    gm: fx.GraphModule, binding: Binding, joint: JointGraph, examples: Sequence[torch.Tensor]
) -> SecondOrder:
    """What runs `gm`, which was traced as `joint` for inputs like `examples`, again."""
    cuda = {node.meta["val"].device for node in joint.inputs if node.meta["val"].is_cuda}
    return SecondOrder(
        gm,
        joint.nodes,
        joint.views,
        binding.placeholders,
        binding.attributes,
        joint.origins,
        joint.makers,
        joint.writers,
        joint.meta.requires_grad,
        _needed(joint),
        frozenset(joint.meta.changed),
        frozenset(_detached(joint)),
        frozenset(at for at, example in enumerate(examples) if example.is_inference()),
        ambient.read(),
        any(is_random(node.target) for node in _forward_calls(joint)),
        tuple(device.index or 0 for device in cuda),
    )


def _needed(joint: JointGraph) -> frozenset[int]:
    """The inputs that some result with gradients depends on."""
    read = {slot for slot, flows in zip(joint.slots, joint.meta.slots, strict=True) if flows}
    for node in reversed(joint.graph.nodes):
        if node in read:
            read.update(_read_by(node))
    return frozenset(at for at, node in enumerate(joint.inputs) if node in read)


def _detached(joint: JointGraph) -> Iterator[int]:
    """The inputs of which a call keeps no more than an alias: autograd's nodes would hold what holds them.

    They are those with which a history is recorded, and those that eager mode does not hold and the user may change.
    """
    held = {index for node in joint.nodes for index in node.kept.inputs} | {*joint.meta.changed}
    yield from (copy.index for copy in joint.meta.copy_back if not copy.no_grad)
    yield from (at for at, requires in enumerate(joint.meta.requires_grad) if not requires and at not in held)


def _forward_calls(joint: JointGraph) -> list[fx.Node]:
    return [node for node in joint.graph.nodes if node.op == "call_function" and node.meta["phase"] == "forward"]


class _Again(fx.Interpreter):
    """Runs the module as it was traced, with these inputs in place of its attributes.

    `made` are tensors that the user holds, by the nodes that made them, `changed` inputs that the graph has changed and
    their positions, by the nodes that gave them their history: history is to lead there.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        attributes: Mapping[str, int],
        inputs: list[torch.Tensor],
        made: Mapping[str, torch.Tensor],
        changed: Mapping[str, tuple[int, torch.Tensor]],
    ) -> None:
        super().__init__(module)
        self.attributes = attributes
        self.inputs = inputs
        self.made = made
        self.changed = changed

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.name in self.changed:
            at, tensor = self.changed[n.name]
            before = self.inputs[at]
            with torch.enable_grad():
                self.inputs[at] = led_to(before, tensor)
                lead = functools.partial(_shown_by, self.inputs[at], before)
                self.env = {node: fx.node.map_aggregate(value, lead) for node, value in self.env.items()}
                result = fx.node.map_aggregate(result, lead)
        return led_to(result, self.made[n.name]) if n.name in self.made else result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        at = self.attributes.get(target)
        return super().get_attr(target, args, kwargs) if at is None else self.inputs[at]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(REPLACEMENTS.get(target, target), args, kwargs)


def _shown_by(base: torch.Tensor, before: torch.Tensor, value: Any) -> Any:
    """`base` instead of what it was before, and views of it instead of such views, where they have a history."""
    if value is before:
        return base
    if not isinstance(value, torch.Tensor) or not value.requires_grad or storage_id(value) != storage_id(base):
        return value
    if value.dtype != base.dtype or value.is_conj() or value.is_neg():
        return value
    return base.as_strided(value.shape, value.stride(), value.storage_offset())


def _outline(region: Region) -> tuple[list[list[int]], list[int | None]]:
    """What has to be alike in both runs: the slots of each result, the inputs among the operands."""
    sources = [source if isinstance(source, int) else None for source in region.into]
    return region.slots, [source for source in sources if source is None or source >= 0]


def _outline_of(node: NodeShape) -> tuple[list[list[int]], list[int | None]]:
    slots = [[] if isinstance(result, Hidden) else [result] for result in node.results]
    return slots, [source if isinstance(source, int) else None for source in node.operands]


def _through(region: Region, ends: Ends, tangents: Sequence[torch.Tensor | None]) -> Grads:
    """The gradients that one region gives for its operands, from the tangents of its results."""
    found: dict[int | GradientEdge, torch.Tensor] = {}

    def leave(node: Any, grads: Sequence[torch.Tensor | None], _: Any) -> None:
        for (source, number), grad in zip(node.next_functions, grads, strict=True):
            if grad is not None and source is not None:
                edge = GradientEdge(source, number)
                target = ends.get(edge, edge)
                if target in region.into:
                    grad = fitting(grad, source._input_metadata[number])
                    found[target] = grad if target not in found else found[target] + grad

    handles = [node.register_hook(functools.partial(leave, node)) for node in region.nodes]
    handles += stop_at_ends(set(region.nodes), ends)
    outside = {source.node for source in region.into if isinstance(source, GradientEdge)}
    handles += [node.register_prehook(lambda grads: (None,) * len(grads)) for node in outside]
    came = [(edge, tangent) for edge, tangent in zip(region.out, tangents, strict=True) if tangent is not None]
    try:
        torch.autograd.grad(
            [edge for edge, _ in came],
            [edge for edge, at in ends.items() if at >= 0],
            [tangent for _, tangent in came],
            create_graph=True,
            allow_unused=True,
        )
    finally:
        for handle in handles:
            handle.remove()
    return tuple([found.get(source) for source in region.into])


def leading_to_inputs(text: FunctionText, meta: GraphMeta, inputs: Sequence[str]) -> str:
    """The expression, evaluated before the call, for tensors whose history leads to that of the inputs.

    Of an input that is changed with a history it is an alias that autograd knows nothing of: it would hold the graph.
    """
    rebound = {copy.index for copy in meta.copy_back if not copy.no_grad}
    wanted = [at for at, requires in enumerate(meta.requires_grad) if requires]
    return tuple_text([_history_of(text, inputs[at]) if at in rebound else inputs[at] for at in wanted])


def _history_of(text: FunctionText, name: str) -> str:
    return f"{text.bind('history_of', history_of)}({name})"

"""Derivatives of the backward pass: the torch-level graph is run again, where autograd sees it.

Note [Second order]: a compiled backward pass is not itself differentiable. Where its gradients are to have a history
(`create_graph`), the graph runs again as plain PyTorch on the inputs of the call, in the same modes and with the same
random numbers, and autograd computes the gradients of the region that is asked for. That costs another forward pass,
and only then. The inputs are kept for it as long as autograd keeps the graph.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge, get_gradient_edge

from framesmith_aot.errors import DoubleBackwardError, SecondDerivativeWarning
from framesmith_aot.runtime.replay import FunctionText, tuple_text
from framesmith_aot.trace.joint import Binding, JointGraph
from framesmith_aot.trace.metadata import Origin
from framesmith_aot.trace.regions import Ends, Hidden, NodeShape, Region, fitting, regions_of
from framesmith_aten.graphs.nodes import dependents
from framesmith_aten.operators import is_custom, is_random
from framesmith_guards.contexts import ambient

Grads = tuple[torch.Tensor | None, ...]


#: What a call leaves for second derivatives: its inputs, their version counters, the generators' states before it.
Kept = tuple[tuple[torch.Tensor, ...], tuple[int, ...], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class SecondOrder:
    """Runs a graph again for the derivatives of its backward pass.

    `views` are the positions of outputs that nodes read as they read inputs, and the slots they are views of.
    `placeholders` and `attributes` say which input each of the module's operands is, `origins` where the tensors of
    slots with gradients come from, `requires_grad` what the inputs are, `changed` which of them the graph writes to,
    `unversioned` which of them count no versions, `devices` whose generators it draws from beside the CPU's (`random`:
    whether it draws at all).
    """

    module: fx.GraphModule
    nodes: Sequence[NodeShape]
    views: Mapping[int, int | None]
    placeholders: Sequence[int]
    attributes: Mapping[str, int]
    origins: Mapping[int, Origin]
    requires_grad: Sequence[bool]
    changed: frozenset[int]
    unversioned: frozenset[int]
    modes: ambient.Ambient
    random: bool
    devices: tuple[int, ...]

    def keep(self, text: FunctionText, inputs: Sequence[str]) -> str:
        """The expression, evaluated before the call, for what it takes to run the call again: a `Kept`."""
        # An input that is written to will have this graph in its history.
        values = [f"{name}.detach()" if at in self.changed else name for at, name in enumerate(inputs)]
        versions = ["0" if at in self.unversioned else f"{name}._version" for at, name in enumerate(inputs)]
        states = []
        if self.random:
            states.append(f"{text.bind('generator_state', torch.default_generator.get_state)}()")
            states += [f"{text.bind('cuda_state', torch.cuda.get_rng_state)}({device})" for device in self.devices]
        return f"({', '.join(tuple_text(part) for part in (values, versions, states))})"

    def gradients(self, kept: Kept, index: int, tangents: Sequence[torch.Tensor | None]) -> Grads:
        """The gradients of the operands of autograd node `index`, with their history.

        Raises RuntimeError where an input was changed in place since, as eager mode does.
        """
        warnings.warn(SecondDerivativeWarning(), stacklevel=2)
        values, versions, states = kept
        self._check_versions(values, versions)
        inputs = [self._alias(at, value) for at, value in enumerate(values)]
        ends = {get_gradient_edge(value): at for at, value in enumerate(inputs) if value.requires_grad}
        with ambient.preserved(), self._random_numbers_from(states):
            ambient.write(self.modes)
            outputs = _Again(self.module, self.attributes, inputs).run(*[inputs[at] for at in self.placeholders])
        roots = {slot: origin.find(inputs, outputs) for slot, origin in self.origins.items()}
        ends.update((get_gradient_edge(outputs[at]), len(inputs) + at) for at in self.views)
        bases = {len(inputs) + at: slot for at, slot in self.views.items() if slot is not None}
        regions = regions_of(roots, ends, bases)
        if [_outline(region) for region in regions] != [_outline_of(node) for node in self.nodes]:
            raise DoubleBackwardError("the graph is another one when it is run again")
        return _through(regions[index], ends, tangents)

    def _check_versions(self, values: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
        for at, (value, version) in enumerate(zip(values, versions, strict=True)):
            if at not in self.changed | self.unversioned and value._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"a tensor of shape {list(value.shape)} is at version {value._version}; expected version "
                    f"{version} instead"
                )

    def _alias(self, at: int, value: torch.Tensor) -> torch.Tensor:
        """An input of the second run: with a node of its own to stop at, and memory of its own if it is written to."""
        with torch.enable_grad():
            if at in self.changed:
                return value.detach().requires_grad_(self.requires_grad[at]).clone()
            return value.view_as(value) if value.requires_grad else value

    @contextmanager
    def _random_numbers_from(self, states: Sequence[torch.Tensor]) -> Iterator[None]:
        if not states:
            yield
            return
        with torch.random.fork_rng(devices=self.devices):
            torch.set_rng_state(states[0])
            for device, state in zip(self.devices, states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


def why_not_again(joint: JointGraph) -> str | None:
    """Why the graph cannot be run again for second derivatives, or None."""
    if any(flows and slot not in joint.origins for slot, flows in enumerate(joint.meta.slots)):
        return "a result is not to be found when it is run again"
    if any(is_custom(node.target) for node in _forward_calls(joint)):
        return "it calls an operator of the user's, which may act outside of tensors"
    reached = dependents(joint.graph, [joint.inputs[index] for index in joint.meta.changed])
    if any(flows and slot in reached for slot, flows in zip(joint.slots, joint.meta.slots, strict=True)):
        return "it changes an input that its results depend on"
    return None


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
        joint.meta.requires_grad,
        frozenset(joint.meta.changed),
        frozenset(at for at, example in enumerate(examples) if example.is_inference()),
        ambient.read(),
        any(is_random(node.target) for node in _forward_calls(joint)),
        tuple(device.index or 0 for device in cuda),
    )


def _forward_calls(joint: JointGraph) -> list[fx.Node]:
    return [node for node in joint.graph.nodes if node.op == "call_function" and node.meta["phase"] == "forward"]


class _Again(fx.Interpreter):
    """Runs the module with these inputs in place of its attributes."""

    def __init__(self, module: fx.GraphModule, attributes: Mapping[str, int], inputs: Sequence[torch.Tensor]) -> None:
        super().__init__(module)
        self.attributes = attributes
        self.inputs = inputs

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        at = self.attributes.get(target)
        return super().get_attr(target, args, kwargs) if at is None else self.inputs[at]


def _outline(region: Region) -> tuple[list[list[int]], list[int | None]]:
    """What has to be alike in both runs: the slots of each result, the inputs among the operands."""
    return region.slots, [source if isinstance(source, int) else None for source in region.into]


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
    outside = {source.node for source in region.into if isinstance(source, GradientEdge)}
    handles += [node.register_prehook(lambda grads: (None,) * len(grads)) for node in outside]
    came = [(edge, tangent) for edge, tangent in zip(region.out, tangents, strict=True) if tangent is not None]
    try:
        torch.autograd.grad(
            [edge for edge, _ in came],
            list(ends),
            [tangent for _, tangent in came],
            create_graph=True,
            allow_unused=True,
        )
    finally:
        for handle in handles:
            handle.remove()
    return tuple([found.get(source) for source in region.into])


class _NotDifferentiable(torch.autograd.Function):
    """Passes gradients through; its own derivative is an error."""

    @staticmethod
    def forward(ctx: Any, why: str, anchor: torch.Tensor, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.why = why
        return tuple([grad.view_as(grad) for grad in grads])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise DoubleBackwardError(ctx.why)


_not_differentiable: Callable[..., tuple[torch.Tensor, ...]] = _NotDifferentiable.apply


def refuse_derivative(grads: Grads, why: str) -> Grads:
    """The gradients, whose own derivative is an error."""
    present = [grad for grad in grads if grad is not None]
    if not present:
        return grads
    anchor = torch.zeros((), requires_grad=True)
    marked = iter(_not_differentiable(why, anchor, *present))
    return tuple([None if grad is None else next(marked) for grad in grads])

"""Channels-last propagation, decided once for a graph: channels last between convolutions where that is faster.

Which convolutions are faster so is the device's matter, see `convolution_layouts`. What lies between them (elementwise
operators, pooling, concatenation) follows its inputs; everything else is given what it was traced with. Of a training
step it is decided for forward and backward graph together: what is saved between them is laid out as both want it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.nodes import value_of
from framesmith_aten.layouts import has_stride
from framesmith_aten.symbolic import all_equal
from framesmith_backends.ir.ops import CONVOLUTIONS
from framesmith_backends.lower.registry import RULES
from framesmith_backends.rewrite.replacing import call
from framesmith_guards.torch_adapter import OpOverload, aten

#: Of the elements that convolutions read and write, the share that may be converted for the rest of the graph. (At
#: a half, two convolutions with what follows both, as much is lost by copies and kernels of two layouts as is gained.)
MOST_CONVERTED = 0.4


@dataclass(frozen=True)
class Preference:
    """The convolutions of a device that are faster in channels-last: `why_not` says why one is not.

    Of a convolution and its gradient, which go together, each may say by `is_lost` that it is not worth it.
    `of_weights` says that weights are laid out in the same way, for which their kernels would lay them out otherwise.
    """

    why_not: Callable[[fx.Node], str | None]
    is_lost: Callable[[fx.Node], bool]
    of_weights: bool


#: Operators beside those with a rule that keep the shape whose results are laid out as their inputs are.
FOLLOWING = frozenset((
    aten.cat.default, aten.constant_pad_nd.default, aten.max_pool2d_with_indices.default, aten.avg_pool2d.default,
    aten._adaptive_avg_pool2d.default, aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec,
    aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default, aten.max_pool2d_with_indices_backward.default,
    aten.avg_pool2d_backward.default, aten._adaptive_avg_pool2d_backward.default,
    aten.upsample_nearest2d_backward.default, aten.upsample_bilinear2d_backward.default,
))  # fmt: skip
#: Operators that read any layout, and whose results have none of it.
READING = frozenset((aten.mean.dim, aten.sum.dim_IntList))


def activations_of(node: object) -> torch.Tensor | None:
    """The value of a node that holds NCHW activations of several pixels, of known sizes."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or value.layout is not torch.strided:
        return None
    known = all(type(n) is int for n in (*value.shape, *value.stride()))
    return value if known and value.shape[2] * value.shape[3] > 1 and value.numel() else None


#: Dimensions as they are put in order for their channels to lie last, and first again.
LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def operand_of(node: fx.Node, position: int) -> fx.Node:
    found = node.args[position]
    assert isinstance(found, fx.Node)
    return found


def operands_of(node: fx.Node) -> list[fx.Node]:
    """The activations that a convolution reads: its input, and the gradient of its result."""
    activations, _, gradient = CONVOLUTIONS[node.target]
    return [operand_of(node, activations), *([] if gradient is None else [operand_of(node, gradient)])]


def channels_last(gm: fx.GraphModule, preference: Preference) -> fx.GraphModule:
    """The graph with its convolutions in channels-last where the device prefers it."""
    graph = with_channels_last(gm.graph, preference)
    return gm if graph is None else new_module(gm, graph)


def with_channels_last(graph: fx.Graph, preference: Preference) -> fx.Graph | None:
    """The same of a graph, with placeholders and results laid out as they were; None where all stays as it is."""
    groups: dict[tuple[fx.Node, fx.Node], list[fx.Node]] = {}
    for node in graph.nodes:
        if node.target in CONVOLUTIONS and not preference.why_not(node):
            activations, weights, _ = CONVOLUTIONS[node.target]
            groups.setdefault((operand_of(node, activations), operand_of(node, weights)), []).append(node)
    worth = [group for group in groups.values() if not any(map(preference.is_lost, group))]
    chosen = sorted(worth, key=_touched, reverse=True)
    while chosen:
        found = _Relaid({node for group in chosen for node in group}, preference.of_weights).of(graph)
        if found is not None:
            return found
        del chosen[len(chosen) * 3 // 4 :]  # the smallest ones: what they gain may not be worth the conversions
    return None


def _touched(nodes: Iterable[fx.Node]) -> int:
    """Elements that convolutions read and write, but for their weights."""
    values = [source.meta["val"] for node in nodes for source in operands_of(node)]
    results = [node.meta["val"] for node in nodes]
    made = [value[0] if isinstance(value, (tuple, list)) else value for value in results]
    return sum(int(value.numel()) for value in (*values, *made) if value is not None)


@dataclass(slots=True)
class _Relaid:
    """A graph being copied: its nodes are `copies`, or `moved` ones, which have the channels last.

    `relaid` are copies laid out with the channels last for a convolution, `restored` are moved ones laid out as they
    were; `converted` counts the elements whose layout changes.
    """

    chosen: set[fx.Node]
    of_weights: bool
    graph: fx.Graph = field(default_factory=fx.Graph)
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)
    moved: dict[fx.Node, fx.Node] = field(default_factory=dict)
    relaid: dict[fx.Node, fx.Node] = field(default_factory=dict)
    restored: dict[fx.Node, fx.Node] = field(default_factory=dict)
    converted: int = 0

    def of(self, graph: fx.Graph) -> fx.Graph | None:
        """The graph with layouts propagated; None where too much would be converted."""
        for node in graph.nodes:
            if node in self.chosen:
                self._convolve(node)
            elif self._follows(node):
                self._follow(node)
            else:
                take = self._any_layout if node.target in READING else self._as_traced
                self.copies[node] = self._copy(node, take, node.meta.get("val"))
        return None if self.converted > MOST_CONVERTED * _touched(self.chosen) else self.graph

    def _copy(self, node: fx.Node, take: Callable[[fx.Node], fx.Node], value: object) -> fx.Node:
        copy = self.graph.node_copy(node, take)
        copy.meta = {**node.meta, "val": value} if value is not None else dict(node.meta)
        return copy

    def _any_layout(self, node: fx.Node) -> fx.Node:
        return self.moved.get(node) or self.copies[node]

    def _as_traced(self, node: fx.Node) -> fx.Node:
        """The node's value in the layout that it was traced with."""
        found = self.copies.get(node) or self.restored.get(node)
        if found is None:
            if node.target is aten.slice.Tensor:
                found = self._copy(node, self._as_traced, node.meta["val"])
            else:
                found = self._laid_out(self.moved[node], last=False)
                if node.meta["val"].shape[1] > 1 and not (self.of_weights and _is_weight_gradient(node)):
                    self.converted += node.meta["val"].numel()
            self.restored[node] = found
        return found

    def _with_channels_last(self, node: fx.Node, *, is_weight: bool = False) -> fx.Node:
        found = self.moved.get(node) or self.relaid.get(node)
        if found is None:
            found = self.relaid[node] = self._laid_out(self.copies[node], last=True)
            if node.meta["val"].shape[1] > 1 and not is_weight:
                self.converted += node.meta["val"].numel()
        return found

    def _laid_out(self, node: fx.Node, *, last: bool) -> fx.Node:
        """The node's value with its channels last, or with them first; in steps of which batches can be taken, too."""
        batch, channels, height, width = node.meta["val"].shape
        step = partial(call, self.graph, node.meta)
        contiguous = partial(step, aten.clone.default, memory_format=torch.contiguous_format)
        if channels == 1 and not last:
            return step(aten.view.default, step(aten.permute.default, node, LAST), [batch, 1, height, width])
        if not last:
            return contiguous(node)
        if channels == 1:
            laid = step(aten.view.default, node, [batch, height, width, 1])
        else:
            laid = contiguous(step(aten.permute.default, node, LAST))
        return step(aten.permute.default, laid, FIRST)

    def _convolve(self, node: fx.Node) -> None:
        weights = operand_of(node, CONVOLUTIONS[node.target][1])
        activations = {source: self._with_channels_last(source) for source in operands_of(node)}
        if weights not in activations and self.of_weights and turns_weights(weights.meta["val"]):
            activations[weights] = self._with_channels_last(weights, is_weight=True)
        value = in_channels_last(node.meta["val"])
        self.moved[node] = self._copy(node, lambda other: activations.get(other) or self._as_traced(other), value)

    def _follows(self, node: fx.Node) -> bool:
        if not any(source in self.moved for source in node.all_input_nodes) or self._are_at_hand(node):
            return False
        if node.target is operator.getitem:
            return isinstance(self._any_layout(node.args[0]).meta["val"], (tuple, list)) and node.args[0] in self.moved  # type: ignore[arg-type]
        if node.target is aten.slice.Tensor:
            return activations_of(node) is not None
        return (self._keeps_shape(node) or node.target in FOLLOWING) and _is_contiguous(node.meta.get("val"))

    def _are_at_hand(self, node: fx.Node) -> bool:
        """Whether all activations that a node takes are there as they were traced, some of them from the beginning."""
        activations = [source for source in node.all_input_nodes if activations_of(source) is not None]
        as_traced = [source in self.copies for source in activations]
        return any(as_traced) and all(
            there or source in self.restored for there, source in zip(as_traced, activations, strict=True)
        )

    def _keeps_shape(self, node: fx.Node) -> bool:
        """Whether a kernel makes elements of the shape of a moved operand: elementwise operators, normalisations."""
        target, value = node.target, node.meta.get("val")
        if not isinstance(target, OpOverload) or str(target) not in RULES:
            return False
        first = value[0] if isinstance(value, (tuple, list)) and value else value
        shapes = [source.meta["val"].shape for source in node.all_input_nodes if source in self.moved]
        return isinstance(first, torch.Tensor) and any(
            first.dim() == len(shape) and all_equal(first.shape, shape) for shape in shapes
        )

    def _follow(self, node: fx.Node) -> None:
        old = node.meta["val"]
        if node.target is operator.getitem:
            value = self._any_layout(node.args[0]).meta["val"][node.args[1]]  # type: ignore[arg-type]
        elif node.target is aten.slice.Tensor:
            rest, options = value_of(node.args[1:]), value_of(node.kwargs)
            value = node.target(self._any_layout(operand_of(node, 0)).meta["val"], *rest, **options)
        else:
            value = in_channels_last(old)
        same = isinstance(value, torch.Tensor) and has_stride(value, old.stride())
        of_weights = node.target is operator.getitem and operand_of(node, 0).target in CONVOLUTIONS
        if same and value.dim() == 4 and (of_weights or value.shape[1] == 1):  # a call gives it other strides
            same = value.stride() == old.stride()
        copy = self._copy(node, self._any_layout, old if same else value)
        (self.copies if same else self.moved)[node] = copy


def turns_weights(weights: torch.Tensor) -> bool:
    """Whether weights are converted for one that wants their channels last: not if they lie so already."""
    _, channels, height, width = weights.shape
    return weights.is_contiguous() and channels > 1 and height * width > 1


def _is_weight_gradient(node: fx.Node) -> bool:
    return node.target is operator.getitem and operand_of(node, 0).target in CONVOLUTIONS and node.args[1:] == (1,)


def _is_contiguous(value: object) -> bool:
    """Whether a result, and each of several, is a contiguous tensor of known sizes."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(v, torch.Tensor) for v in values) and all(
        v is None or (isinstance(v, torch.Tensor) and all(type(n) is int for n in v.shape) and v.is_contiguous())
        for v in values
    )


def in_channels_last(value: Any) -> Any:
    """A value like this one with its channels last, if it holds activations; of several, each."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(in_channels_last, value))
    if value is None or value.dim() != 4:
        return value
    _, channels, height, width = value.shape
    return value.new_empty_strided(value.shape, (height * width * channels, 1, width * channels, channels))

"""A small tracer for graphs with scans: a function of tensors and of two scans, and its eager meaning."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_aten.graphs import control_flow
from framesmith_aten.graphs.tidying.cleanup import canonicalise, eliminate_dead
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_backends import CpuBackend

Tensors = tuple[torch.Tensor, ...]
Step = Callable[..., Tensors]


class Eager:
    """The scans of a function that runs in eager mode."""

    def scan(
        self, step: Step, starts: Sequence[Any], xs: Sequence[Any], captured: Sequence[Any] = (), reverse: bool = False
    ) -> Tensors:
        return control_flow.scan(step, (len(starts), len(xs)), reverse, *starts, *xs, *captured)

    def associative_scan(
        self, join: Step, xs: Sequence[Any], captured: Sequence[Any] = (), reverse: bool = False
    ) -> Tensors:
        return control_flow.associative_scan(join, len(xs), reverse, *xs, *captured)


class Traced(Eager):
    """The same as nodes of the graph of a tracer."""

    def __init__(self, tracer: GraphTracer) -> None:
        self.tracer = tracer

    def scan(
        self, step: Step, starts: Sequence[Any], xs: Sequence[Any], captured: Sequence[Any] = (), reverse: bool = False
    ) -> Tensors:
        length, slices = xs[0].shape[0], [x.new_empty(x.shape[1:]) for x in xs]
        body, results = self._body(step, (*starts, *slices, *captured))
        stacks = [one.new_empty((length, *one.shape)) for one in results[len(starts) :]]
        made = (*(one.new_empty(one.shape) for one in results[: len(starts)]), *stacks)
        return self._node(control_flow.scan, body, (len(starts), len(xs)), reverse, (*starts, *xs, *captured), made)

    def associative_scan(
        self, join: Step, xs: Sequence[Any], captured: Sequence[Any] = (), reverse: bool = False
    ) -> Tensors:
        slices = [x.new_empty(x.shape[1:]) for x in xs]
        body, _ = self._body(join, (*slices, *slices, *captured))
        made = tuple(x.new_empty(x.shape) for x in xs)
        return self._node(control_flow.associative_scan, body, len(xs), reverse, (*xs, *captured), made)

    def _body(self, step: Step, values: Sequence[Any]) -> tuple[fx.GraphModule, Tensors]:
        inner = GraphTracer(self.tracer.fake_mode, CpuBackend().lowers)
        fakes = [value.new_empty(value.shape) if isinstance(value, torch.Tensor) else value for value in values]
        for at, fake in enumerate(fakes):
            inner.placeholder(f"arg{at}", fake)
        with inner:
            results = step(*fakes)
        inner.graph.output(tuple(inner.node_of(one) for one in results))
        return fx.GraphModule(inner.attributes, inner.graph), results

    def _node(
        self, target: Any, body: fx.GraphModule, counts: Any, reverse: bool, operands: Sequence[Any], made: Tensors
    ) -> Tensors:
        tracer = self.tracer
        name = f"body{len(tracer.attributes)}"
        tracer.attributes[name] = body  # type: ignore[assignment]
        nodes = [tracer.node_of(one) if isinstance(one, torch.Tensor) else one for one in operands]
        held = tracer.graph.get_attr(name)
        held.meta["val"] = body
        node = tracer.graph.call_function(target, (held, counts, reverse, *nodes))
        node.meta["val"] = made
        for at, one in enumerate(made):
            item = tracer.graph.call_function(operator.getitem, (node, at))
            item.meta["val"] = one
            tracer._bind(one, item)
        return made


def trace_scans(function: Callable[..., Any], inputs: Sequence[torch.Tensor], symbolic: bool = False) -> fx.GraphModule:
    """The ATen graph of `function(scans, *inputs)`, which returns tensors; see `Eager`. `symbolic`: of any sizes."""
    mode = new_fake_mode(shape_env=ShapeEnv(), static_shapes=not symbolic) if symbolic else new_fake_mode()
    tracer = GraphTracer(mode, CpuBackend().lowers)
    fakes = [mode.from_tensor(value) for value in inputs]
    for index, fake in enumerate(fakes):
        tracer.placeholder(f"x{index}", fake)
    with torch.no_grad(), mode, tracer:
        results = function(Traced(tracer), *fakes)
    tracer.graph.output(tuple(tracer.node_of(value) for value in results))
    canonicalise(tracer.graph)
    eliminate_dead(tracer.graph)
    return fx.GraphModule(tracer.attributes, tracer.graph)

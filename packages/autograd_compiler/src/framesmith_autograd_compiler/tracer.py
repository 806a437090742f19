"""Runs a segment on fake tensors and records the ATen calls under it as an FX graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aten.graphs.cleanup import eliminate_dead
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards import new_fake_mode

Values = Sequence[torch.Tensor | None]


@dataclass(frozen=True)
class Traced:
    """`module` takes the tensors among the inputs, in order, and returns a tuple of tensors.

    `outputs[i]` is the position of the segment's i-th result in that tuple, None for an absent result.
    """

    module: fx.GraphModule
    outputs: tuple[int | None, ...]


def trace(run: Callable[[list[Any]], list[Any]], inputs: Values) -> Traced:
    """Records `run` for tensors like `inputs`. Raises what `run` raises on fake tensors, and TraceUnsupported.

    The graph holds ATen overloads on plain tensors, `meta["val"]` on every node; it is not functional
    where a derivative itself mutates its intermediates.
    """
    mode = new_fake_mode()
    tracer = GraphTracer(mode)
    tracer.phase = "backward"
    values = [None if value is None else mode.from_tensor(value, static_shapes=True) for value in inputs]
    for index, value in enumerate(values):
        if value is not None:
            tracer.placeholder(f"input_{index}", value)
    with torch.no_grad(), mode, tracer:
        results = [_not_a_constant(tracer, value) for value in run(values)]
    present = list({id(value): value for value in results if value is not None}.values())
    positions = {id(value): position for position, value in enumerate(present)}
    tracer.graph.output(tuple(tracer.node_of(value) for value in present))
    eliminate_dead(tracer.graph)
    outputs = tuple(None if value is None else positions[id(value)] for value in results)
    return Traced(new_module(tracer.attributes, tracer.graph), outputs)


def _not_a_constant(tracer: GraphTracer, value: torch.Tensor | None) -> torch.Tensor | None:
    """A result that the caller may keep and change: a constant of the graph is copied."""
    if value is None or tracer.node_of(value).op != "get_attr":
        return value
    return torch.clone(value)

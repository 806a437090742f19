"""A small tracer for the tests: a function of tensors -> a graph of the kind the backends are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_aten.graphs.tidying.cleanup import canonicalise, eliminate_dead
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_backends import CpuBackend


def trace(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The ATen graph of the function, which mutates nothing, with a flat tuple of outputs."""
    mode = new_fake_mode()
    tracer = GraphTracer(mode, CpuBackend().lowers)
    fakes = [mode.from_tensor(value) for value in inputs]
    for index, fake in enumerate(fakes):
        tracer.placeholder(f"x{index}", fake)
    with torch.no_grad(), mode, tracer:
        result = function(*fakes)
    results = result if isinstance(result, (tuple, list)) else (result,)
    tracer.graph.output(tuple(tracer.node_of(value) for value in results))
    canonicalise(tracer.graph)
    eliminate_dead(tracer.graph)
    return fx.GraphModule(tracer.attributes, tracer.graph)


def mutating(function: Callable[..., Any], inputs: Sequence[torch.Tensor], written: Sequence[int]) -> fx.GraphModule:
    """The graph of the function, whose first results go to the inputs `written` by trailing copies."""
    gm = trace(function, inputs)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    output = gm.graph.output_node()
    values = list(output.args[0])
    with gm.graph.inserting_before(output):
        for target, value in zip(written, values):
            gm.graph.call_function(torch.ops.aten.copy_.default, (placeholders[target], value)).meta = dict(
                placeholders[target].meta
            )
    output.args = (tuple(values[len(written) :]),)
    gm.recompile()
    return gm

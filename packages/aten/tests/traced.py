"""A function's calls as a graph, and what the graph calls."""

from __future__ import annotations

from torch import fx

from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_aten.tracing.decompositions import lowers_nothing
from framesmith_aten.tracing.tracer import GraphTracer


def trace(run, *inputs, lowers=lowers_nothing, rules=None):
    """The graph of `run` on fake tensors like `inputs`, and its attributes."""
    mode = new_fake_mode()
    tracer = GraphTracer(mode, lowers, rules)
    fakes = [mode.from_tensor(value) for value in inputs]
    for index, fake in enumerate(fakes):
        tracer.placeholder(f"x{index}", fake)
    with mode, tracer:
        results = run(*fakes)
    tracer.graph.output(tuple(tracer.node_of(value) for value in results))
    return fx.GraphModule(tracer.attributes, tracer.graph)


def targets(gm):
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]

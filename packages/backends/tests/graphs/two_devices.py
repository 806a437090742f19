"""Graphs of a CPU and a CUDA device, traced where there is none and run on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from stand_ins.capturer import StandIn
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from framesmith_aten.contract import BoxedFn
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.tidying.cleanup import eliminate_dead
from framesmith_backends.cuda_graphs.capturable import parameters
from framesmith_backends.cuda_graphs.captured_graph import CapturedGraph
from framesmith_backends.cuda_graphs.partition import Part, in_sequence

GPU = torch.device("cuda", 0)
#: The generator of the CPU's random numbers; those of the device come from the CPU's own generator.
OF_THE_CPU = torch.Generator()


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._to_copy.default(tensor, device=GPU)


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._to_copy.default(tensor, device=torch.device("cpu"))


def traced(function: Callable[..., Any], inputs: Sequence[tuple[tuple[int, ...], str]]) -> fx.GraphModule:
    """The graph of a function of tensors of these sizes on these devices."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with mode:
        fakes = [torch.empty(size, device=device) for size, device in inputs]

    def flat(*values: torch.Tensor) -> Any:
        result = function(*values)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    with torch.no_grad(), mode:
        gm = make_fx(flat, tracing_mode="real")(*fakes)
    eliminate_dead(gm.graph)
    gm.recompile()
    return gm


def with_writes(gm: fx.GraphModule, written: Sequence[int]) -> fx.GraphModule:
    """The graph whose first results go to these inputs instead."""
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    output = gm.graph.output_node()
    values: Any = output.args[0]
    with gm.graph.inserting_before(output):
        for at, value in zip(written, values, strict=False):
            copy = gm.graph.call_function(torch.ops.aten.copy_.default, (inputs[at], value))
            copy.meta = dict(inputs[at].meta)
    output.args = (tuple(values[len(written) :]),)
    gm.recompile()
    return gm


def run_on_cpu(gm: fx.GraphModule) -> BoxedFn:
    """The graph node by node, as if the CPU were both devices."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        copy = copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.target is torch.ops.aten.rand_like.default and node.meta["val"].device.type == "cpu":
            copy.target, copy.kwargs = _random, {}
        elif "device" in copy.kwargs:
            copy.kwargs = {**copy.kwargs, "device": torch.device("cpu")}
    module = new_module(gm, graph)

    def run(args: list[Any]) -> Any:
        values = [*args]
        args.clear()
        return fx.Interpreter(module).run(*values)

    return run


def _random(like: torch.Tensor) -> torch.Tensor:
    return torch.rand(like.shape, generator=OF_THE_CPU)


def run_by_parts(gm: fx.GraphModule, parts: Sequence[Part]) -> tuple[BoxedFn, list[CapturedGraph]]:
    """The graph by its parts, those that may be captured by a capturer for CPU tensors."""
    made: list[CapturedGraph] = []
    functions: list[BoxedFn] = []
    for at, part in enumerate(parts):
        run = run_on_cpu(part.graph)
        if part.why is None:
            made.append(CapturedGraph(run, parameters(part.graph), StandIn(), f"part {at}"))
        functions.append(run if part.why is not None else made[-1])
    return in_sequence(gm, parts, functions), made

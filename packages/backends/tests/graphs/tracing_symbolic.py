"""A tracer for the tests of symbolic graphs: every size of the inputs, and every number among them, is a symbol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from framesmith_backends.eager import run_eagerly


def trace_symbolic(function: Callable[..., Any], inputs: Sequence[Any]) -> fx.GraphModule:
    """The ATen graph of the function, traced at the sizes of these inputs."""
    gm = make_fx(function, tracing_mode="symbolic")(*inputs)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def takes(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether what was found out about the sizes while tracing holds for these inputs."""
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    return bool(gm.shape_env.evaluate_guards_for_args(fakes, inputs, ignore_static=False))


def by_eager(gm: fx.GraphModule, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The graph's results by ATen."""
    with torch.no_grad():
        return run_eagerly(gm)(list(inputs))

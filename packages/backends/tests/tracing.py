"""A small tracer for the tests: a function of tensors -> a graph of the kind the backends are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx


def trace(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The ATen graph of the function, functional, with fakes in meta["val"] and a flat tuple of outputs."""

    def flat(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = function(*args)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    functional = torch.func.functionalize(flat, remove="mutations")
    with torch.no_grad():
        gm = make_fx(functional, tracing_mode="fake")(*inputs)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm

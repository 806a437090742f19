"""In which order random numbers fill a tensor.

Note [Bernoulli in memory order]: dropout fills its mask in place, `empty_like(x).bernoulli_(p)`, in the order of
memory, and the mask has x's strides. Functionalised this becomes `bernoulli(empty_like(x), p)`, whose result is
contiguous: for a transposed x the same numbers would land elsewhere. The functional operator is therefore applied to
the mask as it lies in memory. `torch.bernoulli(x, p)` called by the program itself looks the same at this level and
does want the other order, so a graph that calls it keeps the plain operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from framesmith_aten.layouts import dims_by_stride
from framesmith_aten.tracing.decompositions import Rule

aten = torch.ops.aten


def in_memory_order(value: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Any:
    """`bernoulli(value, p)` with the strides of a dense `value`, filled in the order of memory."""
    order = dims_by_stride(value.stride())
    dense = value.permute(order)
    if value.is_contiguous() or not dense.is_contiguous():
        return NotImplemented
    inverse = [order.index(dim) for dim in range(value.dim())]
    return aten.bernoulli.p(dense, p, generator=generator).permute(inverse)


def rules_for(gm: fx.GraphModule) -> dict[OpOverload, Rule]:
    """The decomposition that keeps dropout's order, unless the graph draws Bernoulli numbers itself."""
    draws = any(getattr(node.target, "__name__", node.target) == "bernoulli" for node in gm.graph.nodes)
    return {} if draws else {aten.bernoulli.p: in_memory_order}

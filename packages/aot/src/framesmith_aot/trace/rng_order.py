"""The order in which an RNG stream fills a tensor.

Note [Bernoulli in memory order]: dropout fills its mask in place, `empty_like(x).bernoulli_(p)`, in memory order, and
the mask has the strides of x. Functionalised, this becomes `bernoulli(empty_like(x), p)`, whose result is contiguous:
for a transposed x the numbers would go to other elements. The functional operator is therefore applied to the mask
permuted to memory order. A `torch.bernoulli(x, p)` of the program itself looks the same at this level and wants the
other order, so there the plain operator stays.
"""

from __future__ import annotations

from typing import Any

import torch

from framesmith_aten.checks.rng_order import check_order
from framesmith_aten.layouts import dims_by_stride
from framesmith_aten.tracing.decompositions import Rule
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.torch_adapter import OpOverload, aten


def in_memory_order(value: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Any:
    """Return `bernoulli(value, p)` with the strides of a dense `value`, filled in memory order."""
    order = dims_by_stride(value.stride())
    dense = value.permute(order)
    if value.is_contiguous() or order == sorted(order):
        return NotImplemented
    inverse = [order.index(dim) for dim in range(value.dim())]
    return aten.bernoulli.p(dense, p, generator=generator).permute(inverse)


def on_dense_memory(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Raise TraceUnsupported where the functional form would fill memory in another order."""
    check_order(aten.normal_functional.default, value)
    return NotImplemented


def rules_for(tracer: GraphTracer) -> dict[OpOverload, Rule]:
    """Return the decompositions that fill memory in eager mode's order."""

    def bernoulli(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        target = None if tracer.source is None else tracer.source.target
        drawn = getattr(target, "__name__", target) == "bernoulli"  # called by the program itself
        return NotImplemented if drawn else in_memory_order(value, *args, **kwargs)

    return {aten.bernoulli.p: bernoulli, aten.normal_functional.default: on_dense_memory}

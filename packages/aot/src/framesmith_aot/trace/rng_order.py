"""In which order random numbers fill a tensor.

Note [Bernoulli in memory order]: dropout fills its mask in place, `empty_like(x).bernoulli_(p)`, in the order of
memory, and the mask has x's strides. Functionalised this becomes `bernoulli(empty_like(x), p)`, whose result is
contiguous: for a transposed x the same numbers would land elsewhere. The functional operator is therefore applied to
the mask as it lies in memory. `torch.bernoulli(x, p)` called by the program itself looks the same at this level and
does want the other order, so there the plain operator is kept.
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
    """`bernoulli(value, p)` with the strides of a dense `value`, filled in the order of memory."""
    order = dims_by_stride(value.stride())
    dense = value.permute(order)
    if value.is_contiguous() or order == sorted(order):
        return NotImplemented
    inverse = [order.index(dim) for dim in range(value.dim())]
    return aten.bernoulli.p(dense, p, generator=generator).permute(inverse)


def on_dense_memory(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Raises TraceUnsupported for what its functional form would draw otherwise."""
    check_order(aten.normal_functional.default, value)
    return NotImplemented


def rules_for(tracer: GraphTracer) -> dict[OpOverload, Rule]:
    """The decompositions that keep eager's order."""

    def bernoulli(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        target = None if tracer.source is None else tracer.source.target
        drawn = getattr(target, "__name__", target) == "bernoulli"  # by the program itself
        return NotImplemented if drawn else in_memory_order(value, *args, **kwargs)

    return {aten.bernoulli.p: bernoulli, aten.normal_functional.default: on_dense_memory}

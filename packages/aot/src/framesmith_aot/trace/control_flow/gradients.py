"""Backward passes of bodies, and the values that control flow saves for its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.trace.control_flow.bodies import Run
from framesmith_aten.graphs.control_flow import calls_of
from framesmith_aten.operators import is_random
from framesmith_aten.tracing.tracer import GraphTracer

Backward = Callable[[GraphTracer, Sequence[Any], Sequence[torch.Tensor | None]], list[torch.Tensor]]
"""Computes gradients of a body's operands from the operands and gradients of its results, None where it has none."""


def backward_of(run: Run, wants: Sequence[bool]) -> Backward:
    """Return the backward pass of a body to those operands that are wanted; zeros where no gradient flows."""

    def backward(child: GraphTracer, args: Sequence[Any], grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        leaves = [one for one, on in zip(args, wants, strict=True) if on]
        found = flowing(run, child, args, wants, grads)
        return [torch.zeros_like(one) if grad is None else grad for one, grad in zip(leaves, found, strict=True)]

    return backward


def flowing(
    run: Run, child: GraphTracer, args: Sequence[Any], wants: Sequence[bool], grads: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Compute the gradients of a body's wanted operands from those of its results; None where none flows."""
    leaves = [one.requires_grad_() for one, on in zip(args, wants, strict=True) if on]
    with torch.enable_grad():
        results = run(child, args)
    refuse_random(child.graph)
    given = [(one, grad) for one, grad in zip(results, grads, strict=True) if grad is not None]
    given = [(one, grad) for one, grad in given if one.requires_grad]
    if not (given and leaves):
        return [None for _ in leaves]
    roots, seeds = [one for one, _ in given], [grad for _, grad in given]
    found: Any = torch.autograd.grad(roots, leaves, seeds, allow_unused=True)
    return [*found]


def refuse_random(graph: fx.Graph) -> None:
    """Raise AotUnsupported where a body that a backward pass runs again draws other random numbers than before."""
    if any(map(is_random, calls_of(graph))):
        why = "the backward pass runs the body again, and would draw others"
        raise AotUnsupported("random-body", "random numbers in a function under control flow, with gradients", why)


class Saved:
    """The operands that a call saves, and further tensors. Tensors pass through autograd, as eager mode's do."""

    def __init__(self, ctx: Any, operands: Sequence[Any], others: Sequence[torch.Tensor]) -> None:
        tensors = [one for one in operands if isinstance(one, torch.Tensor)]
        ctx.save_for_backward(*tensors, *others)
        self.operands = [None if isinstance(one, torch.Tensor) else one for one in operands]
        self.of_tensors = [isinstance(one, torch.Tensor) for one in operands]

    def read(self, ctx: Any) -> tuple[list[Any], tuple[torch.Tensor, ...]]:
        """Return the operands, and the others. Raises autograd's error if one was changed."""
        tensors = iter(ctx.saved_tensors)
        operands = [next(tensors) if on else one for one, on in zip(self.operands, self.of_tensors, strict=True)]
        return operands, tuple(tensors)


def split(values: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Return parts of these sizes, and the rest."""
    parts: list[Any] = []
    for size in sizes:
        parts.append(values[:size])
        values = values[size:]
    return [*parts, values]


def is_differentiable(value: Any) -> bool:
    """Whether a value may have a gradient."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def zeros_of(value: torch.Tensor) -> torch.Tensor:
    """Return contiguous zeros of a tensor's shape and type."""
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device)

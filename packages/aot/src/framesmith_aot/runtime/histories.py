"""Tensors with another autograd history than that of their computation: for second derivatives, and for errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from framesmith_aot.errors import DoubleBackwardError
from framesmith_aot.runtime.codegen import VIEW_TRACKING, FunctionText
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.output_groups import edge_of, reached
from framesmith_aten.graphs.autograd_calls import stop_at
from framesmith_aten.layouts import overlaps_itself

Grads = tuple[torch.Tensor | None, ...]


def own_copy(value: torch.Tensor) -> torch.Tensor:
    """Return a copy with the strides of `value` (contiguous where it overlaps itself), and its history."""
    if not torch.is_grad_enabled():
        with torch.enable_grad():
            return own_copy(value)
    if value.is_contiguous() or overlaps_itself(value):
        return value.clone()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def history_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return an alias with the tensor's history, untracked by the tensor and by autograd. Also records in no_grad."""
    if not torch.is_grad_enabled():
        with torch.enable_grad():
            return history_of(tensor)
    with unstable.ExcludeDispatchKeyGuard(VIEW_TRACKING):
        return tensor.view_as(tensor)


def alias_before_write(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor to read, before the tensor is mutated outside autograd.

    Autograd gives a view that it can replay another node after a mutation. A view of a multi-output call, or one made
    in no_grad, has none: readers lead to the node it had before.
    """
    if not tensor._is_view() or unstable.get_creation_meta(tensor) == unstable.CreationMeta.DEFAULT:
        return tensor
    return history_of(tensor)


class _WithHistoryOf(torch.autograd.Function):
    """Returns the recomputed tensor; its gradient goes to `held`, the tensor of the first run."""

    @staticmethod
    def forward(ctx: Any, recomputed: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return recomputed.view_as(recomputed)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[None, torch.Tensor | None]:
        return None, grads[0]


with_history_of: Callable[..., torch.Tensor] = _WithHistoryOf.apply


def edges_of(
    ends: Sequence[torch.Tensor | None], tensors: Sequence[torch.Tensor | None]
) -> dict[GradientEdge, torch.Tensor]:
    """Return `tensors` by the gradient edges of `ends`, where both are present and the end requires gradients."""
    found = {}
    for end, tensor in zip(ends, tensors, strict=True):
        if end is not None and tensor is not None and end.requires_grad:
            found[edge_of(end)] = tensor
    return found


def redirect_history(grads: Grads, instead: Mapping[GradientEdge, torch.Tensor]) -> Grads:
    """Return the gradients with histories that end at the given edges, and go on from the tensors there."""
    recorded = [grad for grad in grads if grad is not None and grad.requires_grad]
    if not recorded:
        return grads
    edges = [edge for edge in reached(recorded, instead) if instead[edge].requires_grad]
    redirected = iter(_redirected(recorded, edges, *[instead[edge] for edge in edges]))
    return tuple([next(redirected) if grad is not None and grad.requires_grad else grad for grad in grads])


class _RedirectedHistory(torch.autograd.Function):
    """Returns tensors whose history ends at `edges`; gradients that arrive there go to the operands."""

    @staticmethod
    def forward(
        ctx: Any, tensors: Sequence[torch.Tensor], edges: Sequence[GradientEdge], *operands: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.instead = {edge: history_of(operand) for edge, operand in zip(edges, operands, strict=True)}
        ctx.tensors = tensors
        return tuple([tensor.detach() for tensor in tensors])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        came = [(tensor, grad) for tensor, grad in zip(ctx.tensors, grads, strict=True) if grad is not None]
        seeds = [history_of(grad) for _, grad in came]
        create_graph = torch.is_grad_enabled()
        handles = stop_at(ctx.instead)
        try:
            found: Grads = torch.autograd.grad(
                [tensor for tensor, _ in came],
                [*ctx.instead],
                seeds,
                retain_graph=True,  # passes of higher order share it
                create_graph=create_graph,
                allow_unused=True,
            )
        finally:
            for handle in handles:
                handle.remove()
        if create_graph:
            found = redirect_history(found, ctx.instead | edges_of(seeds, [grad for _, grad in came]))
        return None, None, *found


_redirected: Callable[..., tuple[torch.Tensor, ...]] = _RedirectedHistory.apply


class _NotDifferentiable(torch.autograd.Function):
    """Passes tensors through; its derivative is an error."""

    @staticmethod
    def forward(ctx: Any, why: str, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.why = why
        return tuple([grad.view_as(grad) for grad in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise DoubleBackwardError(ctx.why)


_not_differentiable: Callable[..., tuple[torch.Tensor, ...]] = _NotDifferentiable.apply


def refuse_derivative(grads: Grads, why: str, inputs: Sequence[torch.Tensor]) -> Grads:
    """Return the gradients; their derivative with respect to `inputs` is an error."""
    present = [grad for grad in grads if grad is not None]
    if not present:
        return grads
    marked = iter(_not_differentiable(why, len(present), *present, *inputs))
    return tuple([None if grad is None else next(marked) for grad in grads])


def history_text(text: FunctionText, name: str) -> str:
    """Return the expression for `history_of` a tensor."""
    return f"{text.bind('history_of', history_of)}({name})"

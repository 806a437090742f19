"""Calls of autograd's engine as nodes of a torch-level graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from framesmith_aten.layouts import is_dense
from framesmith_aten.symbolic import equal


def engine_gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor | None],
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool,
    materialize: bool,
) -> tuple[Any, ...]:
    """Return what `torch.autograd.grad` gives, computed in this thread, in its modes. Raises what it raises."""
    with torch.autograd.set_multithreading_enabled(False):
        return torch.autograd.grad(
            outputs, inputs, cotangents, retain_graph, create_graph,
            allow_unused=allow_unused, materialize_grads=materialize,
        )  # fmt: skip


def fits_leaf(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Whether autograd keeps the layout of a leaf's first gradient: the leaf's own, or contiguous if it has gaps."""
    wanted = _strides_for(leaf)
    pairs = zip(gradient.shape, gradient.stride(), wanted, strict=True)
    return all(equal(length, 1) or equal(one, other) for length, one, other in pairs)


def own_gradient(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Return a copy of a gradient, in the layout that autograd gives that of a leaf."""
    made = torch.empty_strided(gradient.shape, _strides_for(leaf), dtype=gradient.dtype, device=gradient.device)
    return made.copy_(gradient)


def _strides_for(leaf: torch.Tensor) -> tuple[Any, ...]:
    if is_dense(leaf.shape, leaf.stride()):
        return leaf.stride()
    return torch.empty(leaf.shape, device="meta").stride()

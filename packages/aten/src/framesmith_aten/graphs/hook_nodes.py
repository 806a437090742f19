"""Tensors on their way into or out of a module with backward hooks, as nodes of a torch-level graph."""

from __future__ import annotations

import torch

from framesmith_aten.torch_adapter import unstable


def through_one_node(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return views of the tensors, all made by one autograd node that does nothing: hooks on it see all gradients.

    Autograd refuses writes to the views, as to those of any autograd.Function.
    """
    views: tuple[torch.Tensor, ...] = unstable.BackwardHookFunction.apply(*tensors)
    return views

"""Leaves that a program makes, as nodes of a torch-level graph."""

from __future__ import annotations

import torch


def new_leaf(value: torch.Tensor) -> torch.Tensor:
    """Return a leaf with the memory of `value` that requires gradients: for `value.requires_grad_()`."""
    return value.detach().requires_grad_()

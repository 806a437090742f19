"""The `ctx` of `torch.autograd.Function` in a trace: its methods note what torch's note."""

from __future__ import annotations

import torch
from torch.autograd.function import FunctionCtx


class FunctionContext(FunctionCtx):
    """The `ctx` of a traced Function. Its methods are interpreted; what they note is read when `forward` ends."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[torch.Tensor | None, ...] = ()
    to_save: tuple[torch.Tensor, ...] = ()
    saved_for_forward: tuple[torch.Tensor, ...] = ()
    dirty_tensors: tuple[torch.Tensor, ...] = ()
    non_differentiable: tuple[torch.Tensor, ...] = ()
    materialize_grads: bool = True

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.to_save = tensors

    def save_for_forward(self, *tensors: torch.Tensor) -> None:
        self.saved_for_forward = tensors

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value

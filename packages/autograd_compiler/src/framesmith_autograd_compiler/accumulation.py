"""Accumulates gradients into `.grad` of leaves."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith_autograd_compiler.torch_adapter import unstable


class Accumulator:
    """The engine's AccumulateGrad for one pass; a gradient that nobody else holds becomes `.grad` without a copy.

    `exclusive`: no user code has seen the pass's gradients. `inputs`: the tensors of the pass, which are held
    elsewhere.
    """

    def __init__(self, exclusive: bool, inputs: Sequence[torch.Tensor]) -> None:
        self._exclusive = exclusive
        self._taken = {id(value) for value in inputs}

    def run(self, node: fx.Node, env: dict[fx.Node, Any]) -> None:
        """Run the recorded AccumulateGrad call `node`."""
        operands: Any = node.args
        (grad_node,), variable_node, _, has_post_hooks = operands
        grad, variable = env[grad_node], env[variable_node]
        if grad is not None:
            self._add(node.target, grad, variable, has_post_hooks)
        env[node] = variable.grad

    def _add(self, engine_rule: Any, grad: torch.Tensor, variable: torch.Tensor, has_post_hooks: bool) -> None:
        if self._exclusive and variable.grad is None and id(grad) not in self._taken and _may_take(grad, variable):
            self._taken.add(id(grad))
            variable.grad = grad.detach()
        else:
            variable.grad = engine_rule.function([grad], variable, variable.grad, has_post_hooks)[0]


def _may_take(grad: torch.Tensor, variable: torch.Tensor) -> bool:
    """Whether `grad` has the leaf's layout and is the only tensor over its memory."""
    if grad.layout is not torch.strided or grad.requires_grad or grad.dtype is not variable.dtype:
        return False
    if not variable.is_contiguous() or not grad.is_contiguous() or grad.shape != variable.shape:
        return False
    return _references(grad) == 1


def _references(grad: torch.Tensor) -> int:
    """Return the number of tensors over the memory, without a base that only this view references."""
    # Less one for the Python storage object.
    count: int = unstable.storage_Use_Count(grad.untyped_storage()._cdata) - 1
    base = grad._base
    if base is not None and base.numel() == grad.numel() and sys.getrefcount(base) == _refcount_of_lonely_base():
        count -= 1
    return count


@functools.cache
def _refcount_of_lonely_base() -> int:
    """Return the `sys.getrefcount` of a base that only its view references; it differs between releases of torch."""
    with torch.no_grad():
        view = torch.ones(1).view(1)
    base = view._base
    return sys.getrefcount(base)

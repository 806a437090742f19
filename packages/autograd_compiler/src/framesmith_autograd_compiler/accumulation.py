"""Accumulates gradients into `.grad` of leaves."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_autograd_compiler.torch_adapter import unstable
from framesmith_guards import all_disjoint


@dataclass(frozen=True, slots=True)
class Write:
    """A recorded AccumulateGrad call; `rule` is the engine's function, `is_read`: another call takes the result."""

    node: fx.Node
    grad: fx.Node
    variable: fx.Node
    rule: Callable[..., Any]
    has_post_hooks: bool
    is_read: bool

    @classmethod
    def of(cls, node: fx.Node) -> Write:
        operands: Any = node.args
        (grad,), variable, _, has_post_hooks = operands
        target: Any = node.target
        return cls(node, grad, variable, target.function, has_post_hooks, bool(node.users))


class Accumulator:
    """The engine's AccumulateGrad for one pass; a gradient that nobody else holds becomes `.grad` without a copy.

    `exclusive`: no user code has seen the pass's gradients. `inputs`: the tensors of the pass, which C++ code may hold.
    """

    def __init__(self, exclusive: bool, inputs: Sequence[torch.Tensor]) -> None:
        self.exclusive = exclusive
        # Weak, as inputs are freed during the pass and their addresses used again.
        self._inputs = {id(value): weakref.ref(value) for value in inputs} if exclusive else {}

    def run(self, writes: Sequence[Write], env: dict[fx.Node, Any], unneeded: Sequence[Sequence[fx.Node]]) -> None:
        """Run writes that follow each other, and drop what is not needed after each; sums are one call.

        Those before one that raises are done.
        """
        sums: list[tuple[torch.Tensor, torch.Tensor]] = []
        try:
            for write, nodes in zip(writes, unneeded, strict=True):
                if env[write.grad] is not None:
                    self._write(write, env, sums)
                if write.is_read:
                    env[write.node] = env[write.variable].grad
                for node in nodes:
                    env.pop(node, None)
        finally:
            _add_all(sums)

    def _write(self, write: Write, env: dict[fx.Node, Any], sums: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        variable, grad = env[write.variable], env[write.grad]
        before = variable.grad
        if before is None:
            del grad  # a reference that `_may_take` would count
            if self.exclusive and self._may_take(env, write.grad, variable):
                grad = env[write.grad]
                variable.grad = grad.detach() if grad._is_view() else grad
                return
            grad = env[write.grad]
        elif _adds_in_place(before, grad):
            sums.append((before, grad))
            return
        variable.grad = write.rule([grad], variable, before, write.has_post_hooks)[0]

    def _may_take(self, env: Mapping[fx.Node, Any], node: fx.Node, variable: torch.Tensor) -> bool:
        """Whether a gradient has the leaf's layout, only the environment holds it, and no tensor shares its memory."""
        if _holders(env, node) != _holders_of_lonely_value():
            return False
        grad: torch.Tensor = env[node]
        known = self._inputs.get(id(grad))
        if known is not None and known() is grad:
            return False
        if grad.layout is not torch.strided or grad.requires_grad or grad.dtype is not variable.dtype:
            return False
        if grad.shape != variable.shape or not variable.is_contiguous() or not grad.is_contiguous():
            return False
        return _references(grad) == 1


def _add_all(sums: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Add gradients to existing ones, one by one where a kernel of several would add to shared memory twice at once."""
    befores, grads = [before for before, _ in sums], [grad for _, grad in sums]
    add = unstable.foreach_add_
    if add is not None and len(sums) > 1 and (all(before.is_cpu for before in befores) or all_disjoint(*befores)):
        add(befores, grads)
        return
    for before, grad in sums:
        before.add_(grad)


def _adds_in_place(before: torch.Tensor, grad: torch.Tensor) -> bool:
    """Whether the engine's rule without grad mode is `before.add_(grad)`, for plain tensors of one kind."""
    if type(before) is not torch.Tensor or type(grad) is not torch.Tensor or before.dtype is not grad.dtype:
        return False
    return before.layout is torch.strided and grad.layout is torch.strided and before.shape == grad.shape


def _holders(env: Mapping[Any, Any], node: Any) -> int:
    """Return the number of references to a value, in an unit of its own: see `_holders_of_lonely_value`."""
    return sys.getrefcount(env[node])


@functools.cache
def _holders_of_lonely_value() -> int:
    """Return what `_holders` finds for a value that only the environment holds; it differs between Pythons."""
    return _holders({0: torch.empty(0)}, 0)


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

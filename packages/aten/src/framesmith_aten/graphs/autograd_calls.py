"""A program's calls of autograd, as nodes of a torch-level graph: new leaves, nodes that modules hook, the engine."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.utils.hooks import RemovableHandle

from framesmith_aten.layouts import is_dense
from framesmith_aten.symbolic import equal
from framesmith_aten.torch_adapter import unstable


def new_leaf(value: torch.Tensor) -> torch.Tensor:
    """Return a leaf with the memory of `value` that requires gradients: for `value.requires_grad_()`."""
    return value.detach().requires_grad_()


class _WithData(torch.autograd.Function):
    """Gives a tensor without history, held by a tuple, that of another."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, held: Sequence[torch.Tensor]) -> torch.Tensor:
        return held[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def with_data(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return an alias of `data` whose gradient is that of `tensor`: `tensor` after `tensor.data = data`."""
    with torch.enable_grad():
        alias = data.detach()
        found: torch.Tensor = _WithData.apply(tensor, (alias,)) if tensor.requires_grad else alias  # type: ignore[no-untyped-call]
    return found


def through_one_node(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return views of the tensors, all made by one autograd node that does nothing: hooks on it see all gradients.

    Autograd refuses writes to the views, as to those of any autograd.Function.
    """
    views: tuple[torch.Tensor, ...] = unstable.BackwardHookFunction.apply(*tensors)
    return views


def engine_gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor | None],
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool,
    materialize: bool,
    stops: Sequence[torch.Tensor] = (),
) -> tuple[Any, ...]:
    """Return what `torch.autograd.grad` gives, computed in this thread, in its modes. Raises what it raises.

    Hooks of the inputs do not run, and no gradient passes `stops`, tensors with a history.
    """
    with _stopping(stops), _without_hooks(inputs), torch.autograd.set_multithreading_enabled(False):
        return torch.autograd.grad(
            outputs, inputs, cotangents, retain_graph, create_graph,
            allow_unused=allow_unused, materialize_grads=materialize,
        )  # fmt: skip


@contextmanager
def _stopping(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    handles = stop_at([torch.autograd.graph.get_gradient_edge(one) for one in tensors])
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _without_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Keep hooks of tensors from running inside: who recorded the call runs them."""
    emptied = [(hooks, [*hooks.items()]) for one in tensors if (hooks := one._backward_hooks)]
    for hooks, _ in emptied:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, items in emptied:
            hooks.update(items)


def stop_at(edges: Iterable[GradientEdge]) -> list[RemovableHandle]:
    """Install hooks that stop gradients at some edges; a pass asked for the gradients there has them nevertheless."""
    return [
        edge.node.register_prehook(functools.partial(_without, edge.output_nr))
        for edge in edges
        if edge.node.next_functions
    ]


def _without(number: int, grads: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    return (*grads[:number], None, *grads[number + 1 :])


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

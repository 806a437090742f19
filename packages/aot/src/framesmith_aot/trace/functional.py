"""Functional tensors: torch's functionalisation wrappers around fake tensors, and their queries.

Operations on a wrapper run autograd above it, and reach the tracer as functional ATen below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from framesmith_aot.torch_adapter import unstable
from framesmith_aten.layouts import dims_by_stride, has_stride, in_order, is_dense
from framesmith_aten.symbolic import equal, holds, is_unbacked

_api: Any = torch  # the functionalisation functions are outside torch's annotated surface


@contextmanager
def functionalising() -> Iterator[None]:
    """While active, operators remove mutation, and re-apply views after it."""
    _api._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        _api._disable_functionalization()


@contextmanager
def below() -> Iterator[None]:
    """While active, operators on fake tensors go straight to the tracer."""
    _api._disable_functionalization()
    try:
        with torch.no_grad():
            yield
    finally:
        _api._enable_functionalization(reapply_views=True)


def wrap(value: torch.Tensor) -> torch.Tensor:
    """A functional tensor, without history, whose value is the fake tensor `value`."""
    wrapper: torch.Tensor = _api._to_functional_tensor(value)
    return wrapper


def wrap_input(value: torch.Tensor, requires_grad: bool, is_leaf: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the gradient is asked for, what the graph is run with); the same object for a leaf.

    An input with history gets a wrapper that is no leaf, so that mutating it in place is allowed.
    """
    leaf = wrap(value)
    if not requires_grad:
        return leaf, leaf
    leaf.requires_grad_(True)
    if is_leaf:
        return leaf, leaf
    with torch.enable_grad():  # it has its history whatever the grad mode of the call is
        return leaf, _with_history(leaf, value)


class _WithHistory(torch.autograd.Function):
    """The identity: a fresh wrapper with the same value, so that no operator is recorded."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return wrap(value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


_with_history: Callable[..., torch.Tensor] = _WithHistory.apply


def current_value(wrapper: torch.Tensor) -> torch.Tensor:
    """The fake tensor that holds the wrapper's value now, pending mutations applied."""
    if not _api._is_functional_tensor(wrapper):
        return wrapper
    _api._sync(wrapper)
    value: torch.Tensor = _api._from_functional_tensor(wrapper)
    return value


def snapshot(wrapper: torch.Tensor) -> torch.Tensor:
    """A tensor without history of the value that the wrapper has now: later writes to the wrapper do not show in it."""
    return wrap(current_value(wrapper)) if is_functional(wrapper) else wrapper.detach()


def is_functional(value: object) -> bool:
    return isinstance(value, torch.Tensor) and _api._is_functional_tensor(value)


def differentiable(wrapper: torch.Tensor) -> bool:
    """Whether gradients flow through the wrapper. (A view made in no_grad reports its base's requires_grad.)"""
    return wrapper.grad_fn is not None


def counted_together(wrapper: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a change of the one counts, for autograd, as a change of the other: they share a version counter.

    No tensor is asked for its counter: the wrapper's is moved on, and set back.
    """
    version, others = wrapper._version, other._version
    torch.autograd.graph.increment_version(wrapper)
    together = other._version != others
    unstable.unsafe_set_version_counter((wrapper,), (version,))
    return together


def mutation_count(wrapper: torch.Tensor) -> int:
    """How often the memory the wrapper shows was written to."""
    return int(_api._functionalize_mutation_counter(wrapper))


def replace_value(wrapper: torch.Tensor, value: torch.Tensor) -> None:
    """From now on the wrapper, and all that shares its memory, shows the fake tensor `value`."""
    show_value(wrapper, value)
    _api._functionalize_commit_update(wrapper)
    _api._sync(wrapper)


def show_value(wrapper: torch.Tensor, value: torch.Tensor) -> None:
    """Has the wrapper alone show the fake tensor `value`, equal to what it shows, until the memory is written to."""
    _api._functionalize_replace(wrapper, value)


def keep_layout(wrapper: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """After an in-place operation: lays the wrapper's value out as it was before, with this size and these strides.

    Eager writes into the memory that is there; the functional operator's result has a layout of its own, which what is
    computed from it would take over.
    """
    value = current_value(wrapper)
    if has_stride(value, stride) or value.dim() != len(size) or not all(map(_may_be_equal, value.shape, size)):
        return
    with below():
        if any(equal(length, 0) for length in size):
            moved = value.new_empty_strided(size, stride)  # what is computed of no elements tells strides apart as well
        elif not is_dense(size, stride) and any(equal(step, 0) for step in stride):
            return
        else:  # of memory with gaps, too: what is computed of it has none, and keeps the order
            order = dims_by_stride(stride)
            if value.permute(*order).is_contiguous():
                return
            moved = in_order(value, order)
    replace_value(wrapper, moved)


def _may_be_equal(first: Any, second: Any) -> bool:
    """Whether two lengths are equal. One that data tell is another symbol each time it is computed: it may be."""
    unbacked = is_unbacked(first) or is_unbacked(second)
    return not holds(first != second) if unbacked else bool(first == second)


def has_data_mutation(wrapper: torch.Tensor) -> bool:
    """Whether the wrapper's elements were written to."""
    return bool(_api._functionalize_has_data_mutation(wrapper))


def has_metadata_mutation(wrapper: torch.Tensor) -> bool:
    """Whether shape, strides or storage of the tensor itself were changed in place."""
    return bool(_api._functionalize_has_metadata_mutation(wrapper) or _api._functionalize_was_storage_changed(wrapper))

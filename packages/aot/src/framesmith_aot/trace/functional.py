"""Functional tensors: torch's functionalisation wrappers around fake tensors, and their queries.

Operations on a wrapper run autograd above it, and reach the tracer as functional ATen below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from framesmith_aot.torch_adapter import unstable
from framesmith_aten.graphs.autograd_calls import with_data
from framesmith_aten.layouts import dims_by_stride, has_stride, in_order, is_dense
from framesmith_aten.symbolic import equal, holds, is_unbacked

_api: Any = torch  # the functionalisation functions are outside torch's annotated surface


@contextmanager
def functionalising() -> Iterator[None]:
    """Inside, operators are functionalised: mutations removed, views applied again after them."""
    _api._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        _api._disable_functionalization()


@contextmanager
def below() -> Iterator[None]:
    """Inside, operators on fake tensors go straight to the tracer."""
    _api._disable_functionalization()
    try:
        with torch.no_grad():
            yield
    finally:
        _api._enable_functionalization(reapply_views=True)


def wrap(value: torch.Tensor) -> torch.Tensor:
    """Return a functional tensor without history, with the value `value`, a fake tensor."""
    wrapper: torch.Tensor = _api._to_functional_tensor(value)
    return wrapper


def wrap_input(value: torch.Tensor, requires_grad: bool, is_leaf: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor whose gradient is asked for, and the one the graph is run with; the same object for a leaf.

    The latter is no leaf where the input has a history, so that mutating it in place is allowed.
    """
    leaf = wrap(value)
    if not requires_grad:
        return leaf, leaf
    leaf.requires_grad_(True)
    if is_leaf:
        return leaf, leaf
    with torch.enable_grad():  # its history does not depend on the call's grad mode
        return leaf, _with_history(leaf, value)


class _WithHistory(torch.autograd.Function):
    """The identity: a new wrapper of the same value, so that no operator is recorded."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return wrap(value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


_with_history: Callable[..., torch.Tensor] = _WithHistory.apply


def new_leaf(wrapper: torch.Tensor) -> torch.Tensor:
    """Return an alias of the wrapper that stands for a leaf; like an input with a history, it may be changed in place.

    The gradient edge of the alias leads to the tensor of `leaf_of`.
    """
    return with_data(wrap(current_value(wrapper)).requires_grad_(), wrapper)


def leaf_of(alias: torch.Tensor) -> torch.Tensor:
    """Return the tensor whose gradient is that of a result of `new_leaf`."""
    node: Any = alias.grad_fn
    leaf: torch.Tensor = node.next_functions[0][0].variable
    return leaf


def current_value(wrapper: torch.Tensor) -> torch.Tensor:
    """Return the fake tensor with the wrapper's present value, pending mutations applied."""
    if not _api._is_functional_tensor(wrapper):
        return wrapper
    _api._sync(wrapper)
    value: torch.Tensor = _api._from_functional_tensor(wrapper)
    return value


def snapshot(wrapper: torch.Tensor) -> torch.Tensor:
    """Return a tensor without history of the wrapper's present value, which later writes do not change."""
    return wrap(current_value(wrapper)) if is_functional(wrapper) else wrapper.detach()


def is_functional(value: object) -> bool:
    return isinstance(value, torch.Tensor) and _api._is_functional_tensor(value)


def differentiable(wrapper: torch.Tensor) -> bool:
    """Whether gradients flow through the wrapper. (A view made in no_grad reports its base's requires_grad.)"""
    return wrapper.grad_fn is not None


def counted_together(wrapper: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two wrappers share a version counter.

    Nothing reports a shared counter: the wrapper's is incremented, compared and restored.
    """
    version, others = wrapper._version, other._version
    torch.autograd.graph.increment_version(wrapper)
    together = other._version != others
    unstable.unsafe_set_version_counter((wrapper,), (version,))
    return together


def mutation_count(wrapper: torch.Tensor) -> int:
    return int(_api._functionalize_mutation_counter(wrapper))


def replace_value(wrapper: torch.Tensor, value: torch.Tensor) -> None:
    """Make the fake tensor `value` the value of the wrapper and of all that shares its memory."""
    show_value(wrapper, value)
    _api._functionalize_commit_update(wrapper)
    _api._sync(wrapper)


def show_value(wrapper: torch.Tensor, value: torch.Tensor) -> None:
    """Make the fake tensor `value`, an equal one, the wrapper's value until the next write to its memory."""
    _api._functionalize_replace(wrapper, value)


def keep_layout(wrapper: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """Give the wrapper's value the size and strides from before an in-place operation.

    Eager mode writes into the existing memory; the functional operator's result has other strides, which results
    computed from it would inherit.
    """
    value = current_value(wrapper)
    if has_stride(value, stride) or value.dim() != len(size) or not all(map(_may_be_equal, value.shape, size)):
        return
    with below():
        if any(equal(length, 0) for length in size):
            moved = value.new_empty_strided(size, stride)  # results of empty tensors inherit strides too
        elif not is_dense(size, stride) and any(equal(step, 0) for step in stride):
            return
        else:  # memory with gaps too: results have no gaps, and inherit the order of strides
            order = dims_by_stride(stride)
            if value.permute(*order).is_contiguous():
                return
            moved = in_order(value, order)
    replace_value(wrapper, moved)


def _may_be_equal(first: Any, second: Any) -> bool:
    """Whether two lengths may be equal; each computation of an unbacked length makes another symbol."""
    unbacked = is_unbacked(first) or is_unbacked(second)
    return not holds(first != second) if unbacked else bool(first == second)


def has_data_mutation(wrapper: torch.Tensor) -> bool:
    return bool(_api._functionalize_has_data_mutation(wrapper))


def has_metadata_mutation(wrapper: torch.Tensor) -> bool:
    return bool(_api._functionalize_has_metadata_mutation(wrapper) or _api._functionalize_was_storage_changed(wrapper))

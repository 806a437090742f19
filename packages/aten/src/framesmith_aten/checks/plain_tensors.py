"""The tensors that a graph may hold: strided memory of plain numbers.

Torch's fakes do not model the others: a quantized tensor's lacks its scale and has another dtype, a sparse one's has no
storage. They are neither operands nor results in a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import arguments
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import no_dispatch

#: The ids of refused calls.
OTHER_LAYOUT = "tensor-layout"
SPARSE_GRADIENT = "sparse-gradient"

#: Names of schema arguments that ask for a sparse gradient.
_SPARSE = ("sparse", "sparse_grad")


def why_not_plain(tensor: torch.Tensor) -> str | None:
    """Return the kind of a tensor that no graph holds; None for a plain one, lazily conjugated or not."""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_quantized or is_quantized_dtype(tensor.dtype):
        return "a quantized tensor"
    return None


def why_no_fake(tensor: torch.Tensor) -> str | None:
    """Return the kind of a tensor, or of its base, of which torch makes no fake; None otherwise (sparse too)."""
    if tensor.is_nested or tensor.is_mkldnn or tensor.is_quantized:
        return why_not_plain(tensor)
    if unstable.is_functional_tensor(tensor):
        return "a functional tensor"
    base = tensor._base
    return None if base is None or (reason := why_no_fake(base)) is None else f"a view of {reason}"


def is_inference_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor was made in inference mode and requires a gradient.

    Outside of that mode operators differ in whether they record it; none does without another operand to record.
    """
    return tensor.requires_grad and tensor.is_inference()


def with_bits_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or its lazily conjugated or negated view, as `like` is one."""
    conjugate = tensor.conj() if like.is_conj() else tensor
    return unstable.neg_view(conjugate) if like.is_neg() else conjugate


@cache
def is_quantized_dtype(dtype: torch.dtype) -> bool:
    """Whether the dtype is of integers with a scale and a zero point."""
    with no_dispatch():
        try:
            return torch.empty(0, dtype=dtype, device="cpu").is_quantized
        except RuntimeError:  # torch makes no tensors of it
            return False


@cache
def takes_numbers(dtype: torch.dtype) -> bool:
    """Whether torch fills tensors of this dtype with a number (not for dtypes of bits)."""
    with no_dispatch():
        try:
            torch.full((1,), 1, dtype=dtype, device="cpu")
        except (RuntimeError, NotImplementedError):
            return False
    return True


def refuse_others(op: Any, value: Any) -> None:
    """Raise TraceUnsupported where an operand or a result of the operator is a tensor that no graph holds."""
    if isinstance(value, torch.Tensor):
        kind = why_not_plain(value)
        if kind is not None:
            raise other_layout(op, kind)
    elif isinstance(value, (list, tuple)):
        for item in value:
            refuse_others(op, item)
    elif isinstance(value, torch.dtype) and is_quantized_dtype(value):
        raise other_layout(op, "a quantized tensor")


def other_layout(op: Any, kind: str) -> TraceUnsupported:
    """Return the error of an operator with a tensor of this kind."""
    return TraceUnsupported(OTHER_LAYOUT, f"{op} with {kind}", "a graph holds strided tensors of plain numbers")


def refuse_sparse_gradients(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TraceUnsupported where the call asks autograd for a sparse gradient."""
    if not torch.is_grad_enabled() or not any(argument.name in _SPARSE for argument in op._schema.arguments):
        return
    values = arguments(op, args, kwargs)
    asked = any(values.get(name) is True for name in _SPARSE)
    if asked and any(one.requires_grad for one in tensors_in([*values.values()])):
        raise TraceUnsupported(SPARSE_GRADIENT, str(op), "a graph's gradients are dense")

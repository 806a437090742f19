"""Which tensors a graph may hold: strided memory of numbers, each of which is its element's value.

Of the others torch's fakes are no model: a quantized tensor's lacks its scale, and is of another dtype; a sparse one's
has no storage. So they are neither operands nor results in a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.operators import arguments, tensors_in
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import no_dispatch

#: The ids of what is refused.
OTHER_LAYOUT = "tensor-layout"
SPARSE_GRADIENT = "sparse-gradient"

#: How schemas call the argument that asks for a sparse gradient.
_SPARSE = ("sparse", "sparse_grad")


def why_not_plain(tensor: torch.Tensor) -> str | None:
    """What kind of tensor it is that no graph holds; None of a plain one, lazy bits or not."""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_quantized or is_quantized_dtype(tensor.dtype):
        return "a quantized tensor"
    return None


def why_no_fake(tensor: torch.Tensor) -> str | None:
    """What kind of tensor it is that torch makes no fake of, or that it is a view of one; None if it can be asked.

    Of sparse tensors they can.
    """
    if tensor.is_nested or tensor.is_mkldnn or tensor.is_quantized:
        return why_not_plain(tensor)
    if unstable.is_functional_tensor(tensor):
        return "a functional tensor"
    base = tensor._base
    return None if base is None or (reason := why_no_fake(base)) is None else f"a view of {reason}"


def is_inference_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor was made in inference mode and requires a gradient.

    Outside of that mode some operators record it and others do not: none does that has no other operand to record.
    """
    return tensor.requires_grad and tensor.is_inference()


def with_bits_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or the view of it that is conjugate or negative where `like` is."""
    conjugate = tensor.conj() if like.is_conj() else tensor
    return unstable.neg_view(conjugate) if like.is_neg() else conjugate


@cache
def is_quantized_dtype(dtype: torch.dtype) -> bool:
    """Whether tensors of this dtype hold integers beside which stand a scale and a zero point."""
    with no_dispatch():
        try:
            return torch.empty(0, dtype=dtype, device="cpu").is_quantized
        except RuntimeError:  # torch makes no tensors of it
            return False


@cache
def takes_numbers(dtype: torch.dtype) -> bool:
    """Whether torch fills tensors of this dtype with a number: not those of bits, of which it makes zeros, though."""
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
    """The error that says of an operator that it takes or makes a tensor of this kind."""
    return TraceUnsupported(OTHER_LAYOUT, f"{op} with {kind}", "a graph holds strided tensors of plain numbers")


def refuse_sparse_gradients(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TraceUnsupported where autograd is to make a sparse gradient of one of the operator's operands."""
    if not torch.is_grad_enabled() or not any(argument.name in _SPARSE for argument in op._schema.arguments):
        return
    values = arguments(op, args, kwargs)
    asked = any(values.get(name) is True for name in _SPARSE)
    if asked and any(one.requires_grad for one in tensors_in([*values.values()])):
        raise TraceUnsupported(SPARSE_GRADIENT, str(op), "a graph's gradients are dense")

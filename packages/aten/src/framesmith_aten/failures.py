"""Calls that can raise on some data although their kernels accept the operands: indices, divisors, singular matrices.

Calls that cannot raise once dtypes and shapes are known (pointwise arithmetic, views, matmuls, sums) have no row.
Operands that a kernel refuses whatever their data are found by `checks.kernel_probes`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import arguments, is_composite, is_custom, is_mask, overloads, row
from framesmith_aten.symbolic import equal, holds, holds_at_present
from framesmith_aten.table import MayFail
from framesmith_guards.torch_adapter import OpOverload

Values = Mapping[str, Any]


def may_fail(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call, which fake tensors took, can raise on real ones."""
    return why_may_fail(op, args, kwargs) is not None


def why_may_fail(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return why the call, which fake tensors accepted, can raise on real ones; None where it cannot.

    Ask before fakes run the call: a view beyond their storage enlarges it. A composite operator has a reason of its own
    only where it checks something itself; otherwise ask its parts.
    """
    if not isinstance(op, OpOverload):
        return None
    if is_custom(op):
        return "nothing is known about the operator"
    reason = row(op).fails
    if reason is not None:
        condition = CONDITIONS.get(reason)
        if condition is None or condition(arguments(op, args, kwargs)):
            return reason
    return None


@functools.cache
def composite_may_fail(name: str) -> bool:
    """Whether a torch function of this name is a composite operator that checks data itself.

    Autograd decomposes it before a dispatch mode sees it, and fakes may take a branch without the check.
    """
    return any(is_composite(op) and row(op).fails is not None for op in overloads(name))


def _integer_division(values: Values) -> bool:
    """Whether integers are divided by a number that may be zero."""
    dividend, divisor = values["self"], values["other"]
    if _is_floating(dividend) or _is_floating(divisor):
        return False
    return isinstance(divisor, torch.Tensor) or not holds(divisor != 0)


def _is_floating(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, (float, complex, torch.SymFloat))


def _index_or_mask(values: Values) -> bool:
    """Whether an index may be out of range, a mask may not fit, or values may not match the mask's count."""
    if not all(map(is_mask, tensors_in(values["indices"]))) or not _fit(values["self"], values["indices"]):
        return True
    put = values.get("values")
    return put is not None and not equal(put.numel(), 1)


def _fit(tensor: torch.Tensor, masks: Sequence[torch.Tensor | None]) -> bool:
    """Whether masks are known to have the sizes of the dimensions that they mask, which fakes do not check."""
    lengths = [length for mask in masks for length in ([None] if mask is None else mask.shape)]
    if len(lengths) > tensor.dim():
        return False
    return all(one is None or equal(one, other) for one, other in zip(lengths, tensor.shape, strict=False))


def _interval(values: Values) -> bool:
    low, high = values.get("from"), values.get("to")
    return high is not None and not holds((0 if low is None else low) < high)


def within_storage(values: Values) -> Any:
    """Whether a view by strides, of arguments by name, ends within its storage; may be symbolic."""
    source, size, stride = values["self"], values["size"], values["stride"]
    if any(equal(length, 0) for length in size):
        return True
    offset = values.get("storage_offset")
    last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    needed = ((source.storage_offset() if offset is None else offset) + last + 1) * source.element_size()
    return needed <= source.untyped_storage().nbytes()


def _of_wider_elements(values: Values) -> bool:
    """Whether elements are viewed as wider ones, which must be aligned: fakes of symbolic sizes do not know."""
    dtype: torch.dtype | None = values.get("dtype")
    pairs = "size" not in values and dtype is None
    return pairs or (dtype is not None and dtype.itemsize > values["self"].element_size())


#: For reasons that hold for some calls only: whether they do, by the arguments' names.
CONDITIONS: dict[MayFail, Callable[[Values], bool]] = {
    MayFail.ZERO: _integer_division,
    # True division gives floating point.
    MayFail.ZERO_IF_ROUNDED: lambda values: values.get("rounding_mode") is not None and _integer_division(values),
    MayFail.INDEX_OR_MASK: _index_or_mask,
    MayFail.PROBABILITY: lambda values: not isinstance(p := values.get("p"), float) or not 0 <= p <= 1,
    MayFail.DEVIATION: lambda values: isinstance(values["std"], torch.Tensor),
    MayFail.INTERVAL: _interval,
    MayFail.SINGULAR: lambda values: bool(values.get("check_errors", True)),
    MayFail.STORAGE: lambda values: not holds_at_present(within_storage(values)),
    MayFail.ALIGNMENT: _of_wider_elements,
}

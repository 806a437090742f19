"""Upsampling of symbolic sizes, by the operators themselves.

Torch's rules in Python have other intermediate results, which shows in low-precision results and in tensors saved for
backward: indices and weights, where the operators save nothing. Only overloads with scale factors need a rule, since
C++ reads sizes there, as do the formulas for gradients.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.symbolic import hint_or_none
from framesmith_guards.torch_adapter import DispatchKey, no_dispatch, unstable

if TYPE_CHECKING:
    from framesmith_guards.torch_adapter import FakeTensorMode

_NAME: Final = re.compile(r"aten::_?upsample_\w+?(_backward)?")


def rule_for(op: Any) -> Callable[..., torch.Tensor] | None:
    """Return the rule of an upsampling for symbolic sizes, its gradients as before; None for other operators."""
    name = _NAME.fullmatch(op._schema.name)
    if name is None or name[1]:
        return None
    to_size = op._overloadpacket.default
    return functools.partial(_by_scales if op._overloadname == "vec" else _to_size, to_size)


def _by_scales(to_size: Any, input: torch.Tensor, size: Sequence[Any] | None, *settings: Any) -> torch.Tensor:
    *corners, scales = settings
    unstable.check((size is None) != (scales is None), lambda: "either a size or scale factors")
    if size is None:
        size = [_scaled(length, scale) for length, scale in zip(input.shape[2:], scales, strict=True)]
    return _to_size(to_size, input, size, *corners, *(scales or ()))


def _scaled(length: Any, scale: float) -> Any:
    return length * int(scale) if scale == int(scale) else torch.sym_int(length * scale)  # type: ignore[no-untyped-call]


def _to_size(to_size: Any, input: torch.Tensor, size: Sequence[Any], *settings: Any) -> torch.Tensor:
    """Refuse empty inputs and outputs, which torch's shape formulas accept and the operators do not."""
    for length in (*input.shape[1:], *size):
        unstable.check(length > 0, lambda: "an input or output without pixels")
    # Its own formula for autograd; inner operators have rules as before.
    return to_size._op_dk(DispatchKey.Autograd, input, size, *settings)  # type: ignore[no-any-return]


def gradient(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """Return the gradient of an upsampling, with the operator's memory order for the present sizes; None for others."""
    name = _NAME.fullmatch(op._schema.name)
    if name is None or not name[1] or op._overloadname != "default":
        return None
    grad, output_size, input_size, *settings = args
    numbers = (*grad.shape, *grad.stride(), *output_size, *input_size)
    if not any(isinstance(number, torch.SymInt) for number in numbers):
        return None
    order = _order(op, grad, output_size, input_size, settings)
    with mode:
        memory = grad.new_empty([input_size[dim] for dim in order])
        laid_out: torch.Tensor = memory.permute([order.index(dim) for dim in range(grad.ndim)])
    return laid_out


def _order(op: Any, grad: torch.Tensor, *sizes_and_settings: Any) -> Sequence[int]:
    """Return the order of dimensions in memory; the usual one for unknown sizes."""

    output_size, input_size, settings = sizes_and_settings
    shape, strides, *sizes = (
        [*map(hint_or_none, part)] for part in (grad.shape, grad.stride(), output_size, input_size)
    )
    dims = range(grad.ndim)
    if None in (*shape, *strides, *sizes[0], *sizes[1]):
        return dims
    with no_dispatch():
        known = op(torch.empty_strided(shape, strides, dtype=grad.dtype, device="meta"), *sizes, *settings)
    return sorted(dims, key=known.stride().__getitem__, reverse=True)

"""Upsampling of images whose sizes are symbols, as the operators that they are.

Torch's rules in Python for these operators have other intermediate results, which shows in half types and in what is
kept for the backward pass: indices and weights, where the operators keep nothing. Only the forms that take scale
factors need a rule, since C++ asks for sizes there. The formulas for gradients ask for sizes, too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_guards.torch_adapter import DispatchKey, no_dispatch, unstable

if TYPE_CHECKING:
    from framesmith_guards.torch_adapter import FakeTensorMode

_NAME: Final = re.compile(r"aten::_?upsample_\w+?(_backward)?")


def rule_for(op: Any) -> Callable[..., torch.Tensor] | None:
    """What an upsampling runs as where sizes may be symbols, its gradients as before; None for other operators."""
    name = _NAME.fullmatch(op._schema.name)
    if name is None or name[1]:
        return None
    to_size = op._overloadpacket.default
    return functools.partial(_by_scales if op._overloadname == "vec" else _to_size, to_size)


def _by_scales(to_size: Any, image: torch.Tensor, size: Sequence[Any] | None, *settings: Any) -> torch.Tensor:
    *corners, scales = settings
    unstable.check((size is None) != (scales is None), lambda: "either a size or scale factors")
    if size is None:
        size = [_scaled(length, scale) for length, scale in zip(image.shape[2:], scales, strict=True)]
    return _to_size(to_size, image, size, *corners, *(scales or ()))


def _scaled(length: Any, scale: float) -> Any:
    return length * int(scale) if scale == int(scale) else torch.sym_int(length * scale)  # type: ignore[no-untyped-call]


def _to_size(to_size: Any, image: torch.Tensor, size: Sequence[Any], *settings: Any) -> torch.Tensor:
    """Torch's shape formulas take images without pixels and give some, which the operators refuse."""
    for length in (*image.shape[1:], *size):
        unstable.check(length > 0, lambda: "an image without pixels")
    # Its own formula for autograd; what runs inside has rules as before.
    return to_size._op_dk(DispatchKey.Autograd, image, size, *settings)  # type: ignore[no-any-return]


def gradient(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """The gradient of an upsampled image: laid out as the operator says for the sizes met; None for other operators."""
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
    """The order of dimensions in memory; the usual one where a size is not known."""
    from framesmith_aten.fakes.symbols import hint_of  # which imports sympy

    output_size, input_size, settings = sizes_and_settings
    shape, strides, *sizes = ([*map(hint_of, part)] for part in (grad.shape, grad.stride(), output_size, input_size))
    dims = range(grad.ndim)
    if None in (*shape, *strides, *sizes[0], *sizes[1]):
        return dims
    with no_dispatch():
        known = op(torch.empty_strided(shape, strides, dtype=grad.dtype, device="meta"), *sizes, *settings)
    return sorted(dims, key=known.stride().__getitem__, reverse=True)

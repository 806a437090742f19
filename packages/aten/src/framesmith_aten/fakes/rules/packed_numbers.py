"""Operators of many tensors that take a number for each in one tensor (`_foreach_addcdiv_`, which optimizers use)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

#: Each of them, and itself with a single number: what that gives looks the same.
_WITH_ONE_NUMBER: Final = {
    packet.Tensor: packet.Scalar
    for name in ("_foreach_addcdiv", "_foreach_addcmul", "_foreach_addcdiv_", "_foreach_addcmul_")
    for packet in (getattr(torch.ops.aten, name),)
}


def rule_for(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """What gives the fake result; None for other operators, and where this one refuses its numbers.

    Torch has no rule of its own: the operator asks where the numbers' memory is, which is nowhere.
    """
    if func not in _WITH_ONE_NUMBER:
        return None
    given = {**dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)), **kwargs}
    numbers = given.pop("scalars")
    if numbers.device.type != "cpu" or not numbers.is_contiguous() or tuple(numbers.shape) != (len(given["self"]),):
        return None
    return partial(_WITH_ONE_NUMBER[func], **given)

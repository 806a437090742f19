"""Operators of many tensors that take a number for each in one tensor (`_foreach_addcdiv_`, which optimizers use)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

#: For each, its variant with a single number, whose results have the same layouts.
_WITH_ONE_NUMBER: Final = {
    packet.Tensor: packet.Scalar
    for name in ("_foreach_addcdiv", "_foreach_addcmul", "_foreach_addcdiv_", "_foreach_addcmul_")
    for packet in (getattr(torch.ops.aten, name),)
}


def rule_for(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Return the rule for the fake result; None for other operators, and where this one refuses its numbers.

    Torch has no rule: the operator asks for the address of the numbers, which fakes lack.
    """
    if func not in _WITH_ONE_NUMBER:
        return None
    given = {**dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)), **kwargs}
    numbers = given.pop("scalars")
    if numbers.device.type != "cpu" or not numbers.is_contiguous() or tuple(numbers.shape) != (len(given["self"]),):
        return None
    return partial(_WITH_ONE_NUMBER[func], **given)

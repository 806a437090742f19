"""Elementwise operators of which torch has rules in Python for sizes that are symbols, with their own derivatives.

The rules compute derivatives of their own, which keep something else than the operators do (a mask for `hardshrink`):
a program that changes what the operator keeps is to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from framesmith_guards.torch_adapter import DispatchKey, unstable

if TYPE_CHECKING:
    from framesmith_guards.torch_adapter import FakeTensorMode


def with_its_formula(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """The operator with its own formula for autograd, which is for one number: torch's `rule` serves symbols."""

    def run(*args: Any) -> Any:
        return rule(*args) if any(map(_is_symbol, args)) else op._op_dk(DispatchKey.Autograd, *args)

    return run


def gradient(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """The gradient that an elementwise operator's own formula gives, laid out as a product of the same tensors.

    None for other operators, and where torch has a rule for the formula.
    """
    name = op._schema.name.removeprefix("aten::").removesuffix("_backward")
    if f"aten::{name}_backward" != op._schema.name or op in unstable.decomposition_table or op in unstable.meta_table:
        return None
    if op._overloadname != "default" or torch.Tag.pointwise not in getattr(torch.ops.aten, name).default.tags:
        return None
    first, *others = [arg for arg in args if isinstance(arg, torch.Tensor)]
    with mode:
        for other in others:
            first = first * other
    return first


def _is_symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat)

"""Elementwise operators of which torch has rules in Python for sizes that are symbols, with their own derivatives.

The rules compute derivatives of their own, which keep something else than the operators do (a mask for `hardshrink`):
a program that changes what the operator keeps is to be told. And torch's rule for the derivative of `logsigmoid` asks
whether the forward pass has saved anything for it, which for unbacked lengths nothing answers: the gradient's layout is
the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.fakes.symbols import has_unbacked_length
from framesmith_guards.torch_adapter import DispatchKey, aten, unstable

if TYPE_CHECKING:
    from framesmith_guards.torch_adapter import FakeTensorMode

#: Derivatives whose rules ask for the number of elements of a tensor: (gradient, input, what is saved).
_ASKING: Final = frozenset({aten.log_sigmoid_backward.default})


def with_its_formula(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """The operator with its own formula for autograd, which is for one number: torch's `rule` serves symbols."""

    def run(*args: Any) -> Any:
        return rule(*args) if any(map(_is_symbol, args)) else op._op_dk(DispatchKey.Autograd, *args)

    return run


def gradient(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """The gradient that an elementwise operator's own formula gives, laid out as a product of the same tensors.

    None for other operators, and where torch has a rule for the formula that serves.
    """
    if op in _ASKING and has_unbacked_length(args[1]):
        with mode:
            return args[0] * args[1]  # type: ignore[no-any-return]
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

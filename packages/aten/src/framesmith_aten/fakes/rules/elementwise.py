"""Elementwise operators for which torch's rules for symbolic sizes have derivatives of their own.

Those derivatives save other tensors than the operators do (a mask for `hardshrink`), so that a program's change of a
saved tensor would go unnoticed. Torch's rule for the derivative of `logsigmoid` asks whether the forward pass saved
elements, which is unknown for unbacked sizes and irrelevant to the gradient's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.symbolic import has_unbacked_length
from framesmith_guards.torch_adapter import DispatchKey, aten, unstable

if TYPE_CHECKING:
    from framesmith_guards.torch_adapter import FakeTensorMode

#: Derivatives whose rules ask for a tensor's number of elements: (gradient, input, saved tensor).
_ASKING: Final = frozenset({aten.log_sigmoid_backward.default})


def with_its_formula(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator with its own autograd formula; torch's `rule` serves symbolic scalars."""

    def run(*args: Any) -> Any:
        return rule(*args) if any(map(_is_symbol, args)) else op._op_dk(DispatchKey.Autograd, *args)

    return run


def gradient(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """Return the gradient of an elementwise operator's own formula, with the layout of the operands' elementwise
    combination.

    None for other operators, and where torch has a rule for the formula.
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

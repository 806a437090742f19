"""`zero_grad` without reading the gradients: a step compiled when there were none also serves those with some.

After `Optimizer.zero_grad` (torch/optim/optimizer.py) and `Module.zero_grad` (torch/nn/modules/module.py), which set to
None the gradients that are not.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any, Final, cast

import torch


def _interpreted(function: Any) -> Any:
    """Return a copy of a function that has a handler, to be interpreted instead."""
    inner = cast(FunctionType, inspect.unwrap(function))
    return FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__)


_of_optimizer: Final = _interpreted(torch.optim.Optimizer.zero_grad)
_of_module: Final = _interpreted(torch.nn.Module.zero_grad)


def optimizer_zero_grad(self: Any, set_to_none: bool = True) -> None:
    """`Optimizer.zero_grad`."""
    if not set_to_none or not hasattr(self, "_zero_grad_profile_name"):
        _of_optimizer(self, set_to_none)
        return
    for group in self.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def module_zero_grad(self: Any, set_to_none: bool = True) -> None:
    """`Module.zero_grad`."""
    if not set_to_none or getattr(self, "_is_replica", False):
        _of_module(self, set_to_none)
        return
    for parameter in self.parameters():
        parameter.grad = None

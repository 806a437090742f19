"""Plain leaves: autograd does nothing there but store a gradient of the leaf's own kind."""

from __future__ import annotations

from typing import Any, Final

import torch

#: Attributes of tensors that hold hooks (None or an empty dict where there are none), and what these do.
HOOKS: Final = {
    "_backward_hooks": "a hook sees its gradient",
    "_post_accumulate_grad_hooks": "a hook runs after its gradient is accumulated",
}

#: Whether this torch's tensors say which dtype their gradients have.
HAS_GRAD_DTYPE: Final = hasattr(torch.Tensor, "grad_dtype")


def is_plain_leaf(value: Any, dtype: torch.dtype) -> bool:
    """Whether a tensor is a leaf without hooks, whose gradients have this dtype."""
    return why_not_plain_leaf(value, dtype) is None


def why_not_plain_leaf(value: Any, dtype: torch.dtype) -> str | None:
    """Return the first part of `is_plain_leaf` that does not hold; None if all do."""
    if not value.is_leaf:
        return "it is no leaf: it has a history"
    for name, why in HOOKS.items():
        hooks = getattr(value, name)
        if not (hooks is None or (isinstance(hooks, dict) and not dict.__len__(hooks))):
            return why
    found = value.grad_dtype if HAS_GRAD_DTYPE else value.dtype
    return None if found is dtype else f"its gradients have the dtype {found}"

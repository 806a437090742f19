"""When a frame runs as plain Python because of what surrounds the call: states of torch that a graph would bypass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._device import DeviceContext


def _functorch() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def _saved_tensor_hooks() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _dispatch_modes() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0


def _function_modes() -> bool:
    modes = (torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack()))
    return any(type(mode) is not DeviceContext for mode in modes)


#: (is it so now, why a graph would not do): the first that holds is the reason
STATES: tuple[tuple[Callable[[], bool], str], ...] = (
    (_functorch, "a torch.func transform is running: its tensors are wrappers"),
    (_saved_tensor_hooks, "saved-tensor hooks are active: a graph saves other tensors than the operations would"),
    (_dispatch_modes, "a torch dispatch mode is active: it must see every operation"),
    (_function_modes, "a torch function mode is active: it must see every call"),
)


def why_not_now() -> str | None:
    """Why no frame may be compiled, or run compiled for the first time, just now; or None."""
    return next((reason for holds, reason in STATES if holds()), None)

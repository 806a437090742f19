"""Calls of hooks, and of custom functions' backwards, as a captured pass runs them: uncompiled, or traced.

Tracers of Python functions interpret this module: see `segments.user_code`. Errors are those of autograd's engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor | None]


def call_tensor_hook(hook: Callable[..., Any], grad: torch.Tensor | None) -> torch.Tensor | None:
    """Call a hook of a tensor (`Tensor.register_hook`): its result replaces the gradient unless None."""
    if grad is None:
        return None
    result = hook(grad)
    if result is None:
        return grad
    check_result(hook, grad, result)
    replacement: torch.Tensor = result
    return replacement


def call_pre_hook(hook: Callable[..., Any], grads: Tensors) -> Tensors:
    """Call a hook that runs before a node."""
    return replaced(hook, grads, hook(tuple(grads)))


def call_post_hook(hook: Callable[..., Any], outputs: Tensors, inputs: Tensors) -> Tensors:
    """Call a hook that runs after a node."""
    return replaced(hook, outputs, hook(tuple(outputs), tuple(inputs)))


def replaced(hook: Callable[..., Any], grads: Tensors, result: Any) -> Tensors:
    """Return the gradients after a hook of a node has returned `result`."""
    if result is None:
        return tuple(grads)
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(result).__name__}'")
    if len(result) != len(grads):
        raise RuntimeError(
            f"hook '{name_of(hook)}' has returned an incorrect number of values (got {len(result)}, but expected "
            f"{len(grads)})"
        )
    for grad, one in zip(grads, result, strict=True):
        check_result(hook, grad, one)
    return result


def check_result(hook: Callable[..., Any], grad: torch.Tensor | None, result: Any) -> None:
    """Raise what the engine raises for a hook that replaces a gradient by something else than one like it."""
    if result is None:
        return
    if grad is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(result).__name__}'")
    if grad.dtype != result.dtype or grad.device.type != result.device.type:
        raise RuntimeError(
            f"hook '{name_of(hook)}' has changed the type of value (was {grad.type()} got {result.type()})"
        )
    if grad.shape != result.shape:
        raise RuntimeError(f"hook '{name_of(hook)}' has changed the size of value")


def name_of(hook: Callable[..., Any]) -> str:
    """Return the name of a hook as the engine's errors have it."""
    return getattr(hook, "__name__", "<unknown>")


class PlainContext:
    """The context of a custom function's backward that is traced: what the forward has stored, which stays as it is."""

    def __init__(self, attributes: dict[str, Any], needs_input_grad: tuple[bool, ...], saved: Tensors) -> None:
        object.__setattr__(self, "attributes", attributes)
        object.__setattr__(self, "needs_input_grad", needs_input_grad)
        object.__setattr__(self, "saved_tensors", tuple(saved))

    def __getattr__(self, name: str) -> Any:
        attributes = object.__getattribute__(self, "attributes")
        if name in attributes:
            return attributes[name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


def call_backward_of(
    backward: Callable[..., Any],
    attributes: dict[str, Any],
    needs_input_grad: tuple[bool, ...],
    saved: Tensors,
    grads: Tensors,
) -> Tensors:
    """Call a custom function's backward, given the parts of its context: the form of `call_backward` that is traced."""
    result = backward(PlainContext(attributes, needs_input_grad, saved), *grads)
    return result if isinstance(result, tuple) else (result,)

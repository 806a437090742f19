"""Torch's process and thread state that a compiled graph may depend on: one row per guard kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from framesmith_guards.torch_adapter import unstable


def _has_autocast(device: str) -> bool:
    try:
        torch.is_autocast_enabled(device)
    except RuntimeError:
        return False
    return True


_DEVICES: Final = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "ipu", "xla", "privateuseone")

AUTOCAST_DEVICES: Final = tuple(filter(_has_autocast, _DEVICES))
"""The device types for which this torch has an autocast state, whether or not such a device is here."""


@dataclass(frozen=True)
class StateField:
    """One piece of state: the guard kind's name, how to read it, and what it is in words."""

    kind: str
    read: Callable[[], Any]
    meaning: str


def _autocast() -> tuple[tuple[str, object], ...]:
    """(device, dtype if enabled, else None) of each device, and whether weight casts are cached."""
    active = tuple(
        (device, torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None)
        for device in AUTOCAST_DEVICES
    )
    return (*active, ("cache", torch.is_autocast_cache_enabled()))


def _deterministic() -> tuple[bool, bool]:
    """(deterministic algorithms required, only warn)."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _default_device() -> str | None:
    """The device of the DeviceContext for factories: `torch.device` pushes one and sets nothing else."""
    for index in reversed(range(unstable.len_torch_function_stack())):
        mode = unstable.get_function_stack_at(index)
        if isinstance(mode, unstable.DeviceContext):
            return str(mode.device)
    return None


def _torch_functions() -> tuple[bool, bool]:
    """(enabled for subclasses, disabled for modes too)."""
    return (unstable.is_torch_function_enabled(), unstable.is_torch_function_all_disabled())


def _function_modes() -> tuple[type, ...]:
    count = unstable.len_torch_function_stack()
    if not count:
        return ()
    return tuple(type(unstable.get_function_stack_at(index)) for index in range(count))


def _dispatch_modes() -> tuple[type, ...]:
    count = unstable.len_torch_dispatch_stack()
    if not count:
        return ()
    return tuple(type(unstable.get_dispatch_stack_at(index)) for index in range(count))


def _tracing() -> bool:
    return unstable.get_tracing_state() is not None


def _functorch_stack() -> tuple[tuple[str, int], ...]:
    if unstable.peek_interpreter_stack() is None:
        return ()
    stack = unstable.get_interpreter_stack() or []
    return tuple((str(interpreter.key()), interpreter.level()) for interpreter in stack)


#: The module whose saved-tensor hooks run a function again in the backward pass.
CHECKPOINTS: Final = "torch.utils.checkpoint"


def _saved_tensor_hooks() -> tuple[object, ...]:
    """(enabled, innermost hooks): hooks are "checkpoint" for those of eager checkpoints, "others" for all others.

    Compiled code calls whichever hooks are active on what it saves.
    """
    enabled = unstable.saved_tensors_hooks_is_enabled()
    hooks = unstable.top_saved_tensors_default_hooks(True)
    if hooks is None:
        return (enabled,)
    return (enabled, "checkpoint" if getattr(hooks[0], "__module__", None) == CHECKPOINTS else "others")


def is_in_eager_checkpoint() -> bool:
    """Whether the innermost saved-tensor hooks are those of a checkpoint, or of its recomputation."""
    return _saved_tensor_hooks()[1:] == ("checkpoint",)


def _rounds_matmuls() -> bool:
    """Whether CUDA rounds float32 matmuls to TensorFloat-32. (CPU kernels read their own setting.)

    The older functions raise where the newer settings alone have been changed.
    """
    precision = unstable.get_fp32_precision_getter
    if precision is None:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    return bool(precision("cuda", "matmul") == "tf32")


STATE_FIELDS: Final = (
    StateField("GRAD_MODE", torch.is_grad_enabled, "whether gradients are recorded"),
    StateField("INFERENCE_MODE", torch.is_inference_mode_enabled, "whether inference mode is on"),
    StateField("AUTOCAST", _autocast, "autocast dtype per device, None where off"),
    StateField("DEFAULT_DTYPE", torch.get_default_dtype, "the default floating point dtype"),
    StateField("DEFAULT_DEVICE", _default_device, "the default device"),
    StateField("DETERMINISTIC", _deterministic, "(deterministic algorithms, warn only)"),
    StateField("TORCH_FUNCTION_MODES", _function_modes, "the types of the active torch-function modes"),
    StateField("TORCH_FUNCTIONS", _torch_functions, "(torch functions of subclasses on, all torch functions off)"),
    StateField("TORCH_DISPATCH_MODES", _dispatch_modes, "the types of the active torch-dispatch modes"),
    StateField("JIT_TRACING", _tracing, "whether torch.jit.trace is recording"),
    StateField("FUNCTORCH_STACK", _functorch_stack, "the active torch.func transforms"),
    StateField("SAVED_TENSOR_HOOKS", _saved_tensor_hooks, "the active saved-tensor hooks"),
    StateField("MATMUL_PRECISION", _rounds_matmuls, "whether float32 matmuls on CUDA are rounded to TF32"),
    StateField("NUM_THREADS", torch.get_num_threads, "the number of threads torch uses"),
)

BY_KIND: Final = {field.kind: field for field in STATE_FIELDS}

USUAL_KINDS: Final = tuple(field.kind for field in STATE_FIELDS if field.kind != "NUM_THREADS")
"""The state every captured graph depends on; the thread count matters only to some kernels."""

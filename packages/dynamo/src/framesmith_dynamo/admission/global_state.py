"""States of torch in which a frame runs eagerly, because a graph would bypass them; and a nearly full Python stack.

With few calls left, the tracer would fail where the program itself succeeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch.autograd import forward_ad

from framesmith_dynamo.torch_adapter import unstable
from framesmith_guards import Guard, InstanceDictSource, ItemSource, ModuleSource
from framesmith_guards.kinds.state import BY_KIND, is_in_eager_checkpoint

#: Nested calls that a compilation may need; most need half as many.
STACK_ROOM = 120


def _stack_is_short() -> bool:
    try:
        sys._getframe(sys.getrecursionlimit() - STACK_ROOM)
    except ValueError:
        return False
    return True


def _dispatch_handler() -> bool:
    """Whether a `__torch_dispatch__` is running: the dispatcher then excludes autograd and all Python keys."""
    return bool(unstable.dispatch_tls_is_dispatch_key_excluded(unstable.PythonTLSSnapshot))


def _other_function_modes() -> bool:
    return any(mode is not unstable.DeviceContext for mode in BY_KIND["TORCH_FUNCTION_MODES"].read())


def _dual_level() -> bool:
    return forward_ad._current_level >= 0


def _cuda_graph_captured() -> bool:
    try:
        initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return initialized and torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # a device that has failed raises at every call
        return False


#: The reason for a `run-once` event during CUDA graph capture; compiling runs kernels, which would be captured.
CUDA_GRAPH_CAPTURED: Final = (
    "a CUDA graph is being captured: what compiling does on the device would be part of it. Call the compiled function "
    "once before the capture, with such arguments"
)

#: (test, reason): the first test that holds gives the reason.
STATES: tuple[tuple[Callable[[], object], str], ...] = (
    (
        BY_KIND["FUNCTORCH_STACK"].read,
        "a torch.func transform is running: its tensors are wrappers; compile the function that applies the transform",
    ),
    (is_in_eager_checkpoint, "an eager checkpoint is running: its recomputation has to save the same tensors"),
    (
        _dual_level,
        "forward-mode differentiation is active: a graph would lose the tangents; compile the function that enters the "
        "level",
    ),
    (BY_KIND["TORCH_DISPATCH_MODES"].read, "a torch dispatch mode is active: it must see every operation"),
    (
        _dispatch_handler,
        "a __torch_dispatch__ is running: its operations are below autograd, where nothing can be traced",
    ),
    (BY_KIND["JIT_TRACING"].read, "torch.jit.trace is running: it must see every operation"),
    (_other_function_modes, "a torch function mode is active: it must see every call"),
    (_cuda_graph_captured, CUDA_GRAPH_CAPTURED),
    (_stack_is_short, f"fewer than {STACK_ROOM} calls are left up to Python's recursion limit"),
)


def _under_transform(args: object = None, function: object = None) -> bool:
    return unstable.peek_interpreter_stack() is not None


def _in_checkpoint(args: object = None, function: object = None) -> bool:
    return is_in_eager_checkpoint()


#: Tests of the states that last until what began in them returns: a transform's, and an eager checkpoint's.
_LASTING: Final = (_under_transform, _in_checkpoint)


@contextmanager
def saved_tensor_hooks_covered() -> Iterator[None]:
    """Inside, the program's saved-tensor hooks are not called: what is saved while tracing is none of its tensors."""
    if unstable.top_saved_tensors_default_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        yield


def why_unsupported_state() -> str | None:
    """Return why no frame may be compiled now, or run compiled for the first time; or None."""
    return next((reason for holds, reason in STATES if holds()), None)


def lasting_state() -> Callable[[object, object], bool] | None:
    """Return the check of an entry that torch is in the present state, if whatever a frame calls runs in it too."""
    return next((holds for holds in _LASTING if holds()), None)


def global_state_guards() -> tuple[Guard, ...]:
    """Guards of every entry on states that torch's own guards do not compare: no dual level is open."""
    namespace = InstanceDictSource(ModuleSource(forward_ad.__name__))
    return (Guard(ItemSource(namespace, "_current_level"), "EQUALS_MATCH", -1),)

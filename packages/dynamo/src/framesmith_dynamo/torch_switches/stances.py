"""The meaning of `torch.compiler.set_stance` for calls of compiled functions.

`force_eager`, `aot_eager_then_compile` and a forced backend apply to calls that have an entry; framesmith_frames reads
them as a setting (`divert_by`). The others apply to calls without an entry.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, Final, Protocol, runtime_checkable

from framesmith_dynamo.torch_switches import torch_names
from framesmith_dynamo.torch_switches.settings import warn_once
from framesmith_frames import FrameCallback

EAGER_ON_RECOMPILE: Final = "eager_on_recompile"
FAIL_ON_RECOMPILE: Final = "fail_on_recompile"
EAGER_THEN_COMPILE: Final = "eager_then_compile"
AOT_EAGER_THEN_COMPILE: Final = "aot_eager_then_compile"
FORCE_EAGER: Final = "force_eager"
DEFAULT: Final = "default"
#: The reason why a call runs eagerly under `eager_then_compile`.
FIRST_CALL: Final = "the stance of torch.compile is 'eager_then_compile', and it is the first call"
STANCES: Final = frozenset(
    {DEFAULT, FORCE_EAGER, EAGER_ON_RECOMPILE, FAIL_ON_RECOMPILE, EAGER_THEN_COMPILE, AOT_EAGER_THEN_COMPILE}
)
#: The function that calls one wrapped by `torch._dynamo.run`, and the class of its context.
WRAPPER: Final = "_TorchDynamoContext.__call__.<locals>.compile_wrapper"
RUN_ONLY: Final = "RunOnlyContext"


class StanceForbids(RuntimeError):
    """The stance of torch.compile forbids compiling, and no entry applies; or the stance does not exist."""


@runtime_checkable
class ChoosesBackend(Protocol):
    """A callback that can compile with another backend."""

    def with_backend(self, backend: Any) -> FrameCallback:
        """Return the callback that compiles as this one does, with another backend."""

    def first_call(self, function: FunctionType) -> FrameCallback:
        """Return the callback for a function's first call under `aot_eager_then_compile`; itself for all others."""


def _runs_only() -> bool:
    """Whether `torch._dynamo.run` forbids compiling in the calls now open.

    torch stores this per thread, but not while the callback runs; the frames of its wrappers show it.
    """
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        if frame.f_code.co_qualname == WRAPPER and type(frame.f_locals.get("self")).__name__ == RUN_ONLY:
            return True
    return False


def stance() -> str:
    """Return the stance set by the program; inside `torch._dynamo.run`, the equivalent stance."""
    if torch_names.is_loaded() and _runs_only():
        return EAGER_ON_RECOMPILE
    name: str = getattr(torch_names.read(torch_names.STANCE), "stance", DEFAULT)
    return name


def diversion(said: Any) -> Any:
    """Return the diversion that a stance object of torch means for all calls: see `framesmith_frames.divert_by`."""
    name = getattr(said, "stance", DEFAULT)
    if getattr(said, "skip_guard_eval_unsafe", False):
        warn_once(
            "set_stance(skip_guard_eval_unsafe=True) has no effect: guards find the inputs of graphs, and are checked"
        )
    if name == FORCE_EAGER:
        return _eagerly
    if name == AOT_EAGER_THEN_COMPILE:
        return _first_elsewhere
    backend = getattr(said, "backend", None)
    return None if backend is None else _Forced(backend)


def _eagerly(callback: FrameCallback, function: FunctionType) -> None:
    return None


def _first_elsewhere(callback: Any, function: FunctionType) -> Any:
    return callback.first_call(function) if isinstance(callback, ChoosesBackend) else callback


class _Forced:
    """The diversion of `set_stance(force_backend=...)`."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def __call__(self, callback: Any, function: FunctionType) -> Any:
        if isinstance(callback, ChoosesBackend):
            return callback.with_backend(self.backend)
        warn_once("set_stance(force_backend=...) has no effect on frame callbacks that do not choose a backend")
        return callback

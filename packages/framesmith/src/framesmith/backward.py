"""`compile_backward`: backward passes captured as graphs and compiled by the same backends as forward ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import fx

import framesmith_autograd_compiler
import framesmith_frames
from framesmith.config import CompileConfig, make_config
from framesmith.graphs.pipeline import GraphCompiler
from framesmith.reports.failures import Failures, FramesmithWarning
from framesmith.reports.steps import StepReport
from framesmith.session import cache_key
from framesmith_aten.contract import Runner
from framesmith_autograd_compiler import Capture, Programs
from framesmith_dynamo import NotPure, PureCall, trace_pure_call
from framesmith_guards import warn_user


@contextmanager
def compile_backward(*, backend: Any = "auto", strict: bool = False, **settings: Any) -> Iterator[Capture]:
    """Capture this thread's `backward()` calls within the block, hooks included, and run them compiled.

    Takes the settings of `compile()`; equal settings share compiled passes until `reset()`. Yields a `Capture` with the
    programs that ran, how often, and the reasons for passes that the autograd engine ran. Raises the errors of
    `compile()` for bad settings.
    """
    config = make_config(backend=backend, strict=strict, **settings)
    with framesmith_autograd_compiler.capture(programs_for(config)) as captured:
        yield captured


#: Compiled backward passes by configuration, for blocks that are entered again.
_programs: dict[object, Programs] = {}
_lock = threading.Lock()


def programs_for(config: CompileConfig) -> Programs:
    """The programs of a configuration; the same for an equal configuration, until a reset."""
    key = cache_key(config)
    with _lock:
        if key not in _programs:
            _programs[key] = new_programs(config)
        return _programs[key]


#: The configuration that `compile(compiled_autograd=True)` was last called with.
_enabled: CompileConfig | None = None


def enable_everywhere(config: CompileConfig) -> None:
    """Capture and compile the backward passes of all threads; warn where that has no effect, or ends an earlier one."""
    global _enabled
    why = framesmith_autograd_compiler.why_not_available()
    if why is not None:
        warn_user(FramesmithWarning(f"compiled_autograd=True has no effect: {why}"))
        return
    if _enabled is not None and cache_key(_enabled) != cache_key(config):
        message = "compiled_autograd=True with other settings than before: all backward passes are compiled with these"
        warn_user(FramesmithWarning(message))
    _enabled = config
    framesmith_autograd_compiler.enable(programs_for(config), all_threads=True)


def end_compiled_autograd() -> None:
    """End the effect of `compile(compiled_autograd=True)`."""
    global _enabled
    _enabled = None
    framesmith_autograd_compiler.disable(all_threads=True)


@contextmanager
def captured_for(config: CompileConfig, observe: Callable[[StepReport], None]) -> Iterator[Capture | None]:
    """Inside, passes are captured and compiled again for reports; yields the capture, None where none are captured."""
    if not framesmith_autograd_compiler.is_capturing():
        yield None
        return
    with framesmith_autograd_compiler.capture(new_programs(_enabled or config, observe)) as captured:
        yield captured


def reset_programs() -> None:
    """Forget all backward passes that were compiled."""
    with _lock:
        _programs.clear()
    if _enabled is not None:
        enable_everywhere(_enabled)


def new_programs(config: CompileConfig, observe: Callable[[StepReport], None] | None = None) -> Programs:
    """Programs compiled by the backends that compile forward graphs; `observe` gets a report of each graph."""
    failures = Failures(config.strict)
    compile_graph = GraphCompiler(config, failures, boxed=True, observe=observe, part="backward")

    def compiler_fn(gm: fx.GraphModule) -> Runner:
        with framesmith_frames.deactivated(), torch.no_grad():
            # The pass is not differentiated again: what it takes counts as constant.
            values = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
            examples = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
            return compile_graph(gm, examples)

    return Programs(compiler_fn, failures.report, trace_user_code)


def trace_user_code(function: FunctionType, arguments: Sequence[Any], *, dynamic: bool) -> PureCall | str:
    """Trace a hook, or a Function's backward, for a captured pass: `framesmith_autograd_compiler.TraceCall`."""
    try:
        with framesmith_frames.deactivated(), framesmith_autograd_compiler.disabled():
            return trace_pure_call(function, arguments, dynamic=dynamic)
    except NotPure as error:
        return str(error)

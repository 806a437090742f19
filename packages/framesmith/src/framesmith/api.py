"""`compile()`, `reset()` and `explain()`: arguments checked, a session found, the target wrapped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch

import framesmith_frames
from framesmith.backends import BackendLike
from framesmith.backward import enable_everywhere, reset_programs
from framesmith.choices import check_bool
from framesmith.config import make_config
from framesmith.reports.failures import FramesmithError, FramesmithWarning
from framesmith.reports.stats import clear
from framesmith.session import install_error_handler, reset_sessions, session_for
from framesmith.targets.kinds import check_target
from framesmith.targets.wrappers import compile_callable, compile_module, original_of
from framesmith_dynamo import RESET_LISTENERS, innermost, is_off
from framesmith_guards import warn_user
from framesmith_guards.needs import why_nothing_compiles

T = TypeVar("T", bound=Callable[..., Any])


@overload
def compile(
    target: T,
    *,
    backend: BackendLike = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Mapping[str, object] | None = ...,
    strict: bool = ...,
    verify: bool | int = ...,
    recompile_limit: int | None = ...,
    disable: bool = ...,
    compiled_autograd: bool = ...,
) -> T: ...
@overload
def compile(
    target: None = None,
    *,
    backend: BackendLike = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Mapping[str, object] | None = ...,
    strict: bool = ...,
    verify: bool | int = ...,
    recompile_limit: int | None = ...,
    disable: bool = ...,
    compiled_autograd: bool = ...,
) -> Callable[[T], T]: ...
def compile(
    target: Any = None,
    *,
    backend: BackendLike = "auto",
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    strict: bool = False,
    verify: bool | int = False,
    recompile_limit: int | None = None,
    disable: bool = False,
    compiled_autograd: bool = False,
) -> Any:
    """Compile a function or a module, or, without a target, give a decorator that does.

    target: any callable but a class: a function, the user's or a library's, a builtin, a method, a partial, a callable
    object, a `torch.nn.Module`. A call of which nothing is compiled warns once, with the reason.
    backend: a name from `list_backends()`, a backend object, or a callable `(graph_module, example_inputs)`.
    fullgraph: a call of the target that would run eagerly, or in several graphs, raises an error with the reason.
    dynamic: symbolic sizes and scalars: those that changed between two compilations (None), all from the first call on
    (True), none (False). Sizes 0 and 1 are always specialised.
    mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs", for backends that take one
    ("cuda" captures CUDA graphs for the second and the third); other backends ignore it, with a warning.
    options: options that the backend declares, and `memory_budget`, 0 to 1: the share of what would be saved for the
    backward pass that may be saved; the rest is recomputed.
    strict: a failure inside the compiler is a `FramesmithError` in place of a warning.
    verify: compare the first run (True), or the first N runs (N), of each compiled graph with eager, with gradients.
    recompile_limit: entries per code object (8, or what `torch._dynamo.config.recompile_limit` says).
    disable: give the target back as it is.
    compiled_autograd: from now on, the backward passes of all threads are captured and compiled with these settings, as
    within `compile_backward(...)`; `end_compiled_autograd()` ends that. Warns where it has no effect.

    `torch.compiler.disable`, `set_stance` and other switches of torch.compile hold here, too (docs/torch-switches.md).

    Raises TypeError or ValueError for bad arguments, naming the nearest valid choice.
    """
    settings: dict[str, Any] = {
        "backend": backend,
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "mode": mode,
        "options": options,
        "strict": strict,
        "verify": verify,
        "recompile_limit": recompile_limit,
    }
    config = make_config(**settings)
    captures = check_bool("compiled_autograd", compiled_autograd)
    if check_bool("disable", disable) or is_off():
        return (lambda fn: fn) if target is None else target
    settings["compiled_autograd"] = captures
    if target is None:
        return functools.partial(compile, **settings)
    if captures:
        enable_everywhere(config)
    original = check_target(original_of(innermost(original_of(target))))
    if (why := why_nothing_compiles()) is not None:
        return run_eagerly(target, why, refuse=strict or fullgraph)
    install_error_handler()
    session = session_for(config)
    if isinstance(original, torch.nn.Module) and not isinstance(original, torch.jit.ScriptModule):
        return compile_module(original, session, functools.partial(compile, **settings))
    return compile_callable(original, session)


def run_eagerly(target: Any, why: str, refuse: bool) -> Any:
    """Return the target after one warning with the reason; raise FramesmithError instead if `refuse`."""
    if refuse:
        raise FramesmithError(why)
    _warn_once(why)
    return target


@functools.cache
def _warn_once(why: str) -> None:
    warn_user(FramesmithWarning(f"{why}; all functions run eagerly"))


def reset() -> None:
    """Forget everything compiled, and set the statistics to zero."""
    framesmith_frames.reset()
    reset_sessions()
    reset_programs()
    clear()


RESET_LISTENERS.append(reset_sessions)

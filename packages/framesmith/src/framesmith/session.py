"""One distinct configuration at work: the frame callback, its converter, its graphs' compiler, its failures."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from types import CodeType, FunctionType
from typing import Any

from torch import fx

import framesmith_autograd_compiler
import framesmith_frames
from framesmith.backends import is_for_fixed_sizes, resolve_backend
from framesmith.config import CompileConfig
from framesmith.graphs.garbage_collection import full_collections_postponed
from framesmith.graphs.pipeline import GraphCompiler
from framesmith.reports.failures import Failures, FramesmithError, FramesmithWarning
from framesmith.reports.logs import log_event, logs_steps
from framesmith.reports.stats import count, count_break
from framesmith.reports.steps import StepReport
from framesmith.targets.module_calls import is_module_call
from framesmith_aten.contract import Runner
from framesmith_aten.meta import EXAMPLE, LOCATION
from framesmith_dynamo import (
    CUDA_GRAPH_CAPTURED,
    INTEREST_PACKAGES,
    BreakNotAllowed,
    EagerNotAllowed,
    FrameConverter,
    FrameEvent,
    GraphInput,
    MarkViolated,
    RecompileLimit,
    StanceForbids,
    raising,
    skipped_by_torch,
)

#: event of the converter -> counter
COUNTERS: dict[str, str] = {
    "graph": "graphs",
    "entry": "frames_compiled",
    "recompile": "recompilations",
    "limit": "recompile_limits",
    "skip": "frames_skipped",
    "run-once": "frames_run_once",
    "assumption": "frames_run_once",
    "costly": "costly_functions",
}

#: errors that the caller of a compiled function asked for, with `strict`, `fullgraph` or `mark_dynamic`
FOR_THE_USER = (FramesmithError, BreakNotAllowed, EagerNotAllowed, MarkViolated, RecompileLimit, StanceForbids)

#: Warning of a call that violates a runtime assertion of its graph.
COMPILED_FOR_OTHER_DATA = "a call whose data are not as compiled code assumes runs eagerly:"

#: Warning of a compiled function, once.
NOTHING_COMPILED = "nothing of it is compiled, and it runs eagerly"

Observer = Callable[[FrameEvent], None]


class Session:
    """The callback that frames ask about calls made under one configuration.

    Entries belong to the callback that made them, so equal configurations share one session (`session_for`).
    `observe` gets events, `steps` reports of graphs. `base`: the session that this one is with another backend.
    """

    def __init__(
        self,
        config: CompileConfig,
        observe: Observer | None = None,
        base: Session | None = None,
        steps: Callable[[StepReport], None] | None = None,
    ) -> None:
        self.config = config
        self._steps = steps
        self._observe = observe
        self._base = base
        self._others: dict[object, Session] = {}
        self._postponed = threading.local()
        framesmith_frames.set_interest_filter(self, INTEREST_PACKAGES)
        self.reset()

    def reset(self) -> None:
        """Forget all entries and all reported failures."""
        self._others.clear()
        self._begun: weakref.WeakSet[CodeType] = weakref.WeakSet()
        self.failures = Failures(self.config.strict, eager_is_error=self.config.fullgraph)
        self._compile_graph = GraphCompiler(self.config, self.failures, observe=self._steps)
        before = self._base
        self._converter: FrameConverter = self._make_converter(
            self._on_event, None if before is None else before._converter
        )
        self._module_converter: FrameConverter = self._make_converter(
            self._on_module_event, None if before is None else before._module_converter
        )

    @property
    def refuses(self) -> bool:
        """Whether a call of a compiled function that would run eagerly is an error."""
        return self.config.fullgraph

    @skipped_by_torch
    def on_eager(self, function: FunctionType, reason: str) -> None:
        """A call of a compiled function runs eagerly (with `refuses`), or has, and nothing of it was ever compiled."""
        computing = (entry for entry in framesmith_frames.entries(function) if entry.eager is None)
        if self.refuses or (reason != CUDA_GRAPH_CAPTURED and next(computing, None) is None):
            self.never_compiled(function.__code__.co_qualname, reason)

    def never_compiled(self, name: str, reason: str) -> None:
        """Warn once of a target of which nothing is compiled, or raise EagerNotAllowed."""
        if self.refuses:
            raise EagerNotAllowed(name, reason)
        if self._observe is None:
            self.failures.warn_once(f"{name}: {NOTHING_COMPILED}: {reason}")

    def with_backend(self, backend: object) -> Session:
        """This session with another backend, as a program forces one with `torch.compiler.set_stance`."""
        if self._base is not None or backend == self.config.backend:
            return self
        key = backend if isinstance(backend, str) else id(backend)
        known = self._others.get(key)
        if known is None:
            config = replace(self.config, backend=resolve_backend(backend), options={}, mode="default")
            made = Session(config, self._observe, self, self._steps)
            known = self._others.setdefault(key, made)  # another thread's, if it was first
        return known

    def first_call(self, function: FunctionType) -> Session:
        """Return the session for a function's first call under the stance "aot_eager_then_compile"; else this one."""
        if self._base is not None or function.__code__ in self._begun:
            return self
        self._begun.add(function.__code__)
        return self.with_backend("aot_eager")

    def _make_converter(self, on_event: Observer, before: FrameConverter | None) -> FrameConverter:
        return FrameConverter(
            self._compile,
            fullgraph=self.config.fullgraph,
            recompile_limit=self.config.recompile_limit,
            dynamic=self._dynamic(),
            on_event=on_event,
            strict=self.config.strict,
            histories=None if before is None else before.histories,
        )

    def _dynamic(self) -> bool | None:
        """Return the setting `dynamic`; False in place of None for backends whose kernels have fixed sizes."""
        asked = self.config.dynamic
        return False if asked is None and is_for_fixed_sizes(self.config.backend) else asked

    @skipped_by_torch
    def __call__(self, frame: framesmith_frames.FrameInfo) -> Any:
        """Answer the frame hook."""
        with framesmith_autograd_compiler.disabled(), full_collections_postponed():
            if is_module_call(frame.code):
                return self._compile_module_call(frame)
            count("frames_seen")
            return self._converter(frame)

    def _compile_module_call(self, frame: framesmith_frames.FrameInfo) -> Any:
        """Return the answer for a module's call as a whole.

        Without an entry, only failures are reported: `forward`'s own frame comes next, and meets the same obstacle.
        """
        events: list[FrameEvent] = []
        self._postponed.events = events
        answer: Any = None
        try:
            answer = self._module_converter(frame)
        finally:
            del self._postponed.events
            is_reported = answer is None or isinstance(answer, framesmith_frames.Entry)
            count("frames_seen", int(is_reported))
            for event in events:
                if is_reported or event.kind == "error":
                    self._on_event(event)
        return answer

    def _on_module_event(self, event: FrameEvent) -> None:
        events: list[FrameEvent] | None = getattr(self._postponed, "events", None)
        if events is None:
            self._on_event(event)
        else:
            events.append(event)

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[GraphInput]) -> Runner:
        sources: dict[str, str] = {}
        if self._steps is not None or logs_steps():
            given = zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)
            sources = {node.name: value.source.name for node, value in given}
        compiled = self._compile_graph(gm, [value.example for value in inputs], sources)
        if self._observe is None and isinstance(self.config.backend, str):
            _forget_trace(gm)
        return compiled

    def _on_event(self, event: FrameEvent) -> None:
        if event.kind in COUNTERS:
            count(COUNTERS[event.kind])
        is_new = event.broken is None or count_break(event.broken.site)
        log_event(event, again=not is_new)
        if self._observe is not None:
            self._observe(event)
        if event.kind == "limit":
            message = f"{event.code.co_qualname}: {event.detail}"
            warnings.warn_explicit(message, FramesmithWarning, event.place.filename, event.place.lineno)
        if event.kind == "assumption":
            self.failures.warn_once(f"{event.code.co_qualname}: {COMPILED_FOR_OTHER_DATA} {event.detail}")
        if event.kind == "in-order":
            self.failures.warn_once(f"{event.code.co_qualname}: a graph runs operation by operation: {event.detail}")
        if event.kind == "run-once" and event.detail == CUDA_GRAPH_CAPTURED:
            self.failures.warn_once(f"calls to which no compiled code applies run eagerly: {event.detail}")
        if event.kind == "error" and event.error is not None:
            self.failures.report(str(event.code.co_qualname), event.error, event.place)


def _forget_trace(gm: fx.GraphModule) -> None:
    """Drop the fakes and stack texts of a graph that stays as the eager fallback; locations and nested graphs stay."""
    for held in gm.modules():
        for node in held.graph.nodes if isinstance(held, fx.GraphModule) else ():
            node.meta.pop(EXAMPLE.name, None)
            if LOCATION.on(node):
                node.meta.pop("stack_trace", None)


_sessions: dict[object, Session] = {}
_lock = threading.Lock()


def session_for(config: CompileConfig) -> Session:
    """The session of a configuration; the same one for an equal configuration."""
    key = cache_key(config)
    with _lock:
        if key not in _sessions:
            _sessions[key] = Session(config)
        return _sessions[key]


_OTHER_SETTINGS = tuple(field.name for field in fields(CompileConfig) if field.name not in ("backend", "options"))


def cache_key(config: CompileConfig) -> object:
    """Return the identity of a configuration; backends that are objects count by identity, options by their text."""
    backend = config.backend if isinstance(config.backend, str) else id(config.backend)
    options = tuple(sorted((name, repr(value)) for name, value in config.options.items()))
    return backend, options, tuple([repr(getattr(config, name)) for name in _OTHER_SETTINGS])


def reset_sessions() -> None:
    """Reset every session; compiled functions stay compiled, and are converted again when called."""
    with _lock:
        for session in _sessions.values():
            session.reset()


@functools.cache
def install_error_handler() -> None:
    """Raise errors meant for the user through the frame hook; report other errors of callbacks as failures."""
    framesmith_frames.set_error_handler(handle_error)


def handle_error(error: BaseException, frame: framesmith_frames.FrameInfo) -> framesmith_frames.Entry | None:
    """Handle an error that a callback or a guard check raised, for the frame hook.

    Errors meant for the user are raised within the blocks that are open where the frame begins.
    """
    try:
        if isinstance(error, FOR_THE_USER) or not isinstance(error, Exception):
            raise error
        callback = framesmith_frames.get_callback()
        failures = callback.failures if isinstance(callback, Session) else Failures(strict=False)
        failures.report(str(frame.code.co_qualname), error)
    except BaseException as raised:
        instead = None
        with contextlib.suppress(Exception):  # it may be that nothing of the compiler works
            instead = raising(frame.code, raised)
        if instead is None:
            raise
        return instead
    finally:
        del error  # its traceback holds this frame, and all callers
    return None

"""Stands between `backward()` and the autograd engine: captures the pass, or lets the engine run it."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx
from torch.autograd.variable import Variable

from framesmith_autograd_compiler.errors import CaptureUnsupported, OnFailure, warn_of_failure
from framesmith_autograd_compiler.gate import Gate
from framesmith_autograd_compiler.patterns import lift_floats
from framesmith_autograd_compiler.program import CompilerFn, Program
from framesmith_autograd_compiler.programs import Programs
from framesmith_autograd_compiler.recorder import OTHER_COMPILER, Recorder
from framesmith_autograd_compiler.torch_adapter import unstable
from framesmith_guards import warn_user

#: Kinds of passes that one capture records; the engine runs others.
MOST_PROGRAMS: Final = 256

#: Recorded passes that torch's engine keeps, of which there is one for each number of a schedule. Then it forgets them,
#: and they are recorded anew when they come again; programs stay.
MOST_RECORDED: Final = 1024


@dataclass
class Capture:
    """What a compiler has seen: the `programs` that its passes are, `runs` of them, `fallbacks` with their reasons.

    `kept` is where its programs stay, for other captures too.
    """

    cache: Programs
    programs: list[Program] = field(default_factory=list)
    runs: int = 0
    fallbacks: list[str] = field(default_factory=list)

    def program(self, graph: fx.Graph) -> Program:
        """The program for a recorded pass, whose floats are taken out: one for all that are alike."""
        known = self.cache.find(graph)
        if known is not None:
            return known
        if len(self.programs) >= MOST_PROGRAMS:
            raise CaptureUnsupported("the pass", f"{MOST_PROGRAMS} kinds of passes have been recorded already")
        return self.cache.make(graph)

    def note(self, program: Program) -> None:
        """A pass runs as this program."""
        self.runs += 1
        if not any(one is program for one in self.programs):
            self.programs.append(program)


@dataclass
class _Pass:
    """One backward pass on its way; an error before it has `started` left nothing behind.

    `capture` is None for a pass of the engine's own: nor are passes within it captured.
    """

    capture: Capture | None
    started: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list)


class CapturingEngine:
    """Takes the place of torch's engine object; threads without a capture do not notice it."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self._local = threading.local()
        self._gate = Gate()
        self._last: Capture | None = None
        self._others: object = None
        self._stale = False
        self._recorded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @property
    def captures(self) -> list[Capture | None]:
        """The captures active on this thread, innermost last; None switches them off."""
        if not hasattr(self._local, "captures"):
            self._local.captures = []
        found: list[Capture | None] = self._local.captures
        return found

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Registers a function to run at the end of the pass (what `DistributedDataParallel` calls)."""
        current: _Pass | None = getattr(self._local, "current", None)
        if current is None or not current.started:
            self.real.queue_callback(callback)
        else:
            current.callbacks.append(callback)

    def run_backward(self, *arguments: Any, **options: Any) -> Any:
        """The engine's entry point; `arguments` are roots, their gradients, keep_graph, create_graph, ..."""
        if getattr(self._local, "current", None) is not None:
            return self.real.run_backward(*arguments, **options)
        capture = self.captures[-1] if self.captures else None
        if capture is None:
            return self._plain(arguments, options)
        reason, failed = why_not(create_graph=arguments[3]), None
        if reason is None:
            current = _Pass(capture)
            try:
                return self._captured(capture, current, arguments, options)
            except Exception as error:
                if current.started:
                    raise
                reason = f"{type(error).__name__}: {error}"
                failed = error if arose_in_recording(error) else None
        if failed is not None and reason not in capture.fallbacks:
            capture.cache.on_failure("a backward pass", failed)
        self._local.current = _Pass(None)
        try:
            result = self._plain(arguments, options)  # an error of the user's own is raised here again, as itself
        finally:
            self._local.current = None
        if failed is None and reason not in capture.fallbacks:
            warn_user(UserWarning(f"the backward pass is not captured: {reason}"))
        capture.fallbacks.append(reason)
        return result

    def _plain(self, arguments: Any, options: Any) -> Any:
        with self._gate.plain():
            return self.real.run_backward(*arguments, **options)

    def _is_outdated(self, capture: Capture) -> bool:
        """Whether what the engine's cache holds may not be what this capture has recorded, or one with its programs."""
        others, self._others = self._others, recorded_by_others()
        return self._stale or self._last is None or self._last.cache is not capture.cache or others != self._others

    def _captured(self, capture: Capture, current: _Pass, arguments: Any, options: Any) -> Any:
        with self._gate.captured() as allowed:
            if not allowed:
                raise CaptureUnsupported("the pass", "another one is on its way in the engine")
            hook = unstable.engine
            if self._is_outdated(capture):
                hook.clear_cache()
                self._stale, self._recorded = False, 0
            self._last = capture
            prior = hook.set_autograd_compiler(lambda: Recorder(lambda done: self._finish(capture, done)), False)
            self._local.current = current
            try:
                result = self.real.run_backward(*arguments, **options)
                for callback in current.callbacks:
                    callback()
                return result
            finally:
                self._local.current = None
                hook.set_autograd_compiler(*prior)

    def _finish(self, capture: Capture, recorder: Recorder) -> tuple[Any, Any]:
        """What the engine keeps for passes like this one: a function it calls, and its first argument."""
        floats = lift_floats(recorder.graph)
        program = capture.program(recorder.graph)
        # What has been decided by holds for this pass alone, while the engine believes it to be an input.
        self._recorded += 1
        self._stale = self._stale or recorder.specialised or self._recorded >= MOST_RECORDED

        def run(_: Any, inputs: Any, sizes: Any, scalars: Any, hooks: Any, packed: Any) -> Any:
            current: _Pass = self._local.current
            current.started = True
            assert current.capture is not None
            current.capture.note(program)
            # Not set again behind the run: other threads' passes may be on their way.
            unstable.engine.set_autograd_compiler(None, False)
            with self._gate.running():
                return program.run(inputs, sizes, scalars, hooks, packed, floats)

        return run, program.run


def recorded_by_others() -> object:
    """How many passes torch's own compiler has recorded, into the same cache of the engine; None where it is not there.

    Its counter is replaced by a reset.
    """
    counter = getattr(sys.modules.get(OTHER_COMPILER), "COMPILE_COUNTER", None)
    return None if counter is None else (id(counter), repr(counter))


def arose_in_recording(error: Exception) -> bool:
    """Whether the recorder failed: neither the engine raised the error, nor was it meant."""
    if isinstance(error, CaptureUnsupported):
        return False
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_code is not CapturingEngine._captured.__code__


def why_not(create_graph: bool) -> str | None:
    """Why no pass can be captured now, None if one can."""
    if create_graph:
        return "create_graph=True asks for a pass that is itself differentiable"
    if torch.is_anomaly_enabled():
        return "anomaly detection watches the engine's own nodes"
    if unstable.len_torch_dispatch_stack() > 0:
        return "a dispatch mode is active"
    return None


_install_lock = threading.Lock()


def installed() -> CapturingEngine:
    """The capturing engine, put in its place at the first call."""
    with _install_lock:
        current: Any = Variable._execution_engine
        engine = current if isinstance(current, CapturingEngine) else CapturingEngine(current)
        Variable._execution_engine = engine  # type: ignore[assignment]
        return engine


@contextmanager
def capture(compiler_fn: CompilerFn | Programs, *, on_failure: OnFailure = warn_of_failure) -> Iterator[Capture]:
    """Inside, this thread's backward passes are captured and compiled with `compiler_fn`.

    `compiler_fn(gm)` gets an ATen graph with `meta["val"]` on its nodes and gives a function of the
    same flat tensors. A pass that cannot be captured runs in the engine, with a warning. So does a pass, or a part of
    one, that the recorder or `compiler_fn` fails on; `on_failure(where, error)` is told, and what it raises reaches the
    caller of the pass. Given `Programs`, those are used again, with their compiler and `on_failure`.
    """
    made = Capture(programs_of(compiler_fn, on_failure))
    stack = installed().captures
    stack.append(made)
    try:
        yield made
    finally:
        stack.remove(made)


def programs_of(compiler_fn: CompilerFn | Programs, on_failure: OnFailure = warn_of_failure) -> Programs:
    """Where the programs of a compiler stay: new, unless it is given. Raises TypeError for what is neither."""
    if isinstance(compiler_fn, Programs):
        return compiler_fn
    if not callable(compiler_fn):
        raise TypeError(f"compiler_fn must be callable, got {type(compiler_fn).__name__}")
    return Programs(compiler_fn, on_failure)


@contextmanager
def disabled() -> Iterator[None]:
    """Inside, the engine runs this thread's backward passes itself."""
    engine: Any = Variable._execution_engine
    if not isinstance(engine, CapturingEngine):
        yield
        return
    engine.captures.append(None)
    try:
        yield
    finally:
        engine.captures.pop()


def enable(compiler_fn: CompilerFn | Programs) -> Capture:
    """Like `capture`, until `disable()` is called on this thread."""
    made = Capture(programs_of(compiler_fn))
    installed().captures.append(made)
    return made


def disable() -> None:
    """Ends every `enable` of this thread."""
    installed().captures.clear()

"""Intercepts `backward()` before the autograd engine: captures the pass, or lets the engine run it."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import fx
from torch.autograd.variable import Variable

from framesmith_aten.contract import OnError
from framesmith_autograd_compiler.engine_order import Edges, in_engine_order
from framesmith_autograd_compiler.errors import CaptureUnsupported, warn_of_failure
from framesmith_autograd_compiler.gate import Gate
from framesmith_autograd_compiler.program import Program
from framesmith_autograd_compiler.programs import Programs, lift_floats
from framesmith_autograd_compiler.recorder import OTHER_COMPILER, Recorder
from framesmith_autograd_compiler.segments.runner import CompilerFn
from framesmith_autograd_compiler.torch_adapter import unstable
from framesmith_guards import warn_user

#: Programs that one capture may make; the engine runs other passes.
MOST_PROGRAMS: Final = 256

#: Why hooks may run in another order than the engine's.
UNORDERED: Final = "the engine's nodes are others than the graph's: hooks run in the order in which they were recorded"

#: Recorded passes in torch's cache, of which a schedule makes one for each float. Then the cache is cleared, and passes
#: are recorded again; programs stay.
MOST_RECORDED: Final = 1024


@dataclass
class Capture:
    """The `programs` of a compiler's passes, the number of `runs`, and the reasons of `fallbacks` to the engine.

    `cache` holds its programs, for other captures too. `str()` says what is compiled, what is not, and why.
    """

    cache: Programs
    programs: list[Program] = field(default_factory=list)
    runs: int = 0
    fallbacks: list[str] = field(default_factory=list)

    def program(self, graph: fx.Graph) -> Program:
        """Return the program for a recorded pass with lifted floats, also one of another pass of the same pattern."""
        known = self.cache.find(graph)
        if known is not None:
            return known
        if len(self.programs) >= MOST_PROGRAMS:
            raise CaptureUnsupported("the pass", f"{MOST_PROGRAMS} programs have been recorded already")
        return self.cache.make(graph)

    def __str__(self) -> str:
        lines = [f"{self.runs} captured, {len(self.programs)} compiled", *map(str, self.programs)]
        return "\n".join(lines + [f"run by the engine: {reason}" for reason in dict.fromkeys(self.fallbacks)])

    def note(self, program: Program) -> None:
        self.runs += 1
        if not any(one is program for one in self.programs):
            self.programs.append(program)


@dataclass
class _Pass:
    """A running backward pass; an error before it has `started` has no effects.

    `capture` is None for a pass that the engine runs, and for passes within it.
    """

    capture: Capture | None
    started: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list)


class _Thread(threading.local):
    """The captures of this thread, innermost last (None: turned off), and its running pass."""

    def __init__(self) -> None:
        self.captures: list[Capture | None] = []
        self.current: _Pass | None = None


class CapturingEngine:
    """Replaces torch's engine object; passes on threads without a capture go straight to the engine."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self._thread = _Thread()
        self._gate = Gate()
        #: The capture of threads that have none of their own.
        self.everywhere: Capture | None = None
        self._last: Capture | None = None
        self._others: object = None
        self._stale = False
        self._recorded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @property
    def captures(self) -> list[Capture | None]:
        """The captures active on this thread, innermost last; None turns them off."""
        return self._thread.captures

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Register a function to run at the end of the pass (`DistributedDataParallel` does)."""
        current = self._thread.current
        if current is None or not current.started:
            self.real.queue_callback(callback)
        else:
            current.callbacks.append(callback)

    def run_backward(self, *arguments: Any, **options: Any) -> Any:
        """The engine's entry point; `arguments` are roots, their gradients, keep_graph, create_graph, ..."""
        if self._thread.current is not None:
            return self.real.run_backward(*arguments, **options)
        capture = self.captures[-1] if self.captures else self.everywhere
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
        self._thread.current = _Pass(None)
        try:
            result = self._plain(arguments, options)  # raises the user's own errors
        finally:
            self._thread.current = None
        if failed is None and reason not in capture.fallbacks:
            warn_user(UserWarning(f"the backward pass is not captured: {reason}"))
        capture.fallbacks.append(reason)
        return result

    def _plain(self, arguments: Any, options: Any) -> Any:
        with self._gate.plain():
            return self.real.run_backward(*arguments, **options)

    def _is_outdated(self, capture: Capture) -> bool:
        """Whether the engine's cache may hold passes that no capture with these programs has recorded."""
        others, self._others = self._others, recorded_by_others()
        return self._stale or self._last is None or self._last.cache is not capture.cache or others != self._others

    def _captured(self, capture: Capture, current: _Pass, arguments: Any, options: Any) -> Any:
        with self._gate.captured() as allowed:
            if not allowed:
                raise CaptureUnsupported("the pass", "another pass is running in the engine")
            hook = unstable.engine
            if self._is_outdated(capture):
                hook.clear_cache()
                self._stale, self._recorded = False, 0
            self._last = capture
            edges = partial(_edges, arguments, options)
            finish = partial(self._finish, capture, edges)
            prior = hook.set_autograd_compiler(lambda: Recorder(finish), False)
            self._thread.current = current
            try:
                result = self.real.run_backward(*arguments, **options)
                for callback in current.callbacks:
                    callback()
                return result
            finally:
                self._thread.current = None
                hook.set_autograd_compiler(*prior)

    def _finish(self, capture: Capture, edges: Callable[[], Edges], recorder: Recorder) -> tuple[Any, Any]:
        """Return what the engine caches for passes like this one: a function that it calls, and its first argument."""
        is_ordered = in_engine_order(recorder.graph, recorder.groups, edges)
        floats = lift_floats(recorder.graph)
        program = capture.program(recorder.graph)
        if not is_ordered:
            program.note(UNORDERED)
        # A specialised size or scalar holds for this pass alone; the engine treats it as an input.
        self._recorded += 1
        self._stale = self._stale or recorder.specialised or self._recorded >= MOST_RECORDED

        def run(_: Any, inputs: Any, sizes: Any, scalars: Any, hooks: Any, packed: Any) -> Any:
            current = self._thread.current
            assert current is not None and current.capture is not None
            current.started = True
            current.capture.note(program)
            # Not set again after the run: passes of other threads may be running.
            unstable.engine.set_autograd_compiler(None, False)
            with self._gate.running():
                return program.run(inputs, sizes, scalars, hooks, packed, floats)

        return run, program.run


def _edges(arguments: Sequence[Any], options: Mapping[str, Any]) -> Edges:
    """Return the edges that a pass with these arguments of the engine's follows."""
    roots, _, _, _, inputs, *_ = arguments
    return Edges.of(roots, inputs or (), accumulates=bool(options.get("accumulate_grad", False)))


def recorded_by_others() -> object:
    """Return a count of the passes that torch's own compiler has recorded into the engine's cache, or None."""
    counter = getattr(sys.modules.get(OTHER_COMPILER), "COMPILE_COUNTER", None)
    return None if counter is None else (id(counter), repr(counter))


def arose_in_recording(error: Exception) -> bool:
    """Whether the recorder failed: neither did the engine raise the error, nor this package on purpose."""
    if isinstance(error, CaptureUnsupported):
        return False
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_code is not CapturingEngine._captured.__code__


def why_not(create_graph: bool) -> str | None:
    """Return why no pass can be captured now, or None."""
    if create_graph:
        return "create_graph=True asks for a pass that is itself differentiable"
    if torch.is_anomaly_enabled():
        return "anomaly detection watches the engine's own nodes"
    if unstable.len_torch_dispatch_stack() > 0:
        return "a dispatch mode is active"
    return None


_install_lock = threading.Lock()


def installed() -> CapturingEngine:
    """Return the capturing engine; install it at the first call."""
    with _install_lock:
        current: Any = Variable._execution_engine
        engine = current if isinstance(current, CapturingEngine) else CapturingEngine(current)
        Variable._execution_engine = engine  # type: ignore[assignment]
        return engine


@contextmanager
def capture(compiler_fn: CompilerFn | Programs, *, on_failure: OnError = warn_of_failure) -> Iterator[Capture]:
    """Capture this thread's backward passes inside, and compile them with `compiler_fn`.

    `compiler_fn(gm)` gets an ATen graph with `meta["val"]` on its nodes and returns a function of the same flat
    tensors. A pass that cannot be captured runs in the engine, with a warning. So does a pass, or a part of one, for
    which the recorder or `compiler_fn` fails; `on_failure(where, error)` is called instead of the warning, and an error
    that it raises reaches the caller of the pass. `Programs` in place of `compiler_fn` are used again, with their
    compiler and `on_failure`.
    """
    made = Capture(programs_of(compiler_fn, on_failure))
    stack = installed().captures
    stack.append(made)
    try:
        yield made
    finally:
        stack.remove(made)


def programs_of(compiler_fn: CompilerFn | Programs, on_failure: OnError = warn_of_failure) -> Programs:
    """Return new programs for a compiler, or the given ones. Raises TypeError for anything else."""
    if isinstance(compiler_fn, Programs):
        return compiler_fn
    if not callable(compiler_fn):
        raise TypeError(f"compiler_fn must be callable, got {type(compiler_fn).__name__}")
    return Programs(compiler_fn, on_failure)


@contextmanager
def disabled() -> Iterator[None]:
    """Inside, the engine runs this thread's backward passes itself, whatever is enabled."""
    engine: Any = Variable._execution_engine
    if not isinstance(engine, CapturingEngine):
        yield
        return
    engine.captures.append(None)
    try:
        yield
    finally:
        engine.captures.pop()


def enable(compiler_fn: CompilerFn | Programs, *, all_threads: bool = False) -> Capture:
    """Capture like `capture`, until `disable()` is called on this thread.

    `all_threads`: also on all other threads, those that capture by themselves excepted, until the next such call or
    `disable(all_threads=True)`.
    """
    made = Capture(programs_of(compiler_fn))
    if all_threads:
        installed().everywhere = made
    else:
        installed().captures.append(made)
    return made


def disable(*, all_threads: bool = False) -> None:
    """End every `enable` of this thread, and, with `all_threads`, the one of all threads."""
    engine = installed()
    engine.captures.clear()
    if all_threads:
        engine.everywhere = None


def is_capturing() -> bool:
    """Whether backward passes of this thread are captured."""
    engine: Any = Variable._execution_engine
    if not isinstance(engine, CapturingEngine):
        return False
    return (engine.captures[-1] if engine.captures else engine.everywhere) is not None


def why_not_available() -> str | None:
    """Return why this torch's backward passes cannot be captured, or None."""
    return None if unstable.has("engine") else "this torch has no hook for capturing backward passes"
